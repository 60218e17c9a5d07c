#include "model/mixers/families.h"

namespace aft {

StateSpec AftStateSpec(const kernels::AftStateLayout& layout) {
  StateSpec spec;
  spec.floats = layout.Floats();
  spec.sections = {{"prefix", 0, layout.KRing()},
                   {"k_ring", layout.KRing(), layout.ring_floats()},
                   {"v_ring", layout.VRing(), layout.ring_floats()}};
  return spec;
}

StateSpec ConvStateSpec(const kernels::ConvStateLayout& layout) {
  StateSpec spec;
  spec.floats = layout.Floats();
  spec.sections = {{"prefix", 0, layout.KRing()},
                   {"k_ring", layout.KRing(), layout.VRing() - layout.KRing()},
                   {"v_ring", layout.VRing(), layout.Floats() - layout.VRing()}};
  return spec;
}

StateSpec AttentionStateSpec(const kernels::AttentionParams& params) {
  const kernels::AttentionStateLayout layout(params);
  StateSpec spec;
  spec.floats = layout.Floats();
  const auto add = [&spec](const char* name, int64_t offset, int64_t end) {
    if (end > offset) spec.sections.push_back({name, offset, end - offset});
  };
  add("first_key", layout.FirstKey(), layout.FirstValue());
  add("first_value", layout.FirstValue(), layout.Keys());
  add("keys", layout.Keys(), layout.Values());
  add("values", layout.Values(), layout.Floats());
  if (!params.ring()) {
    spec.floats_per_token =
        params.heads * ((params.stores_keys() ? params.score_width : 0) + params.value_width);
    // Each head fills from its front: keys by spans of blocks, values token by token.
    for (StateSection& section : spec.sections) {
      const bool keys = section.name == "keys";
      const int64_t span = params.block_size > 0 ? params.block_size : kernels::kKeyBlock;
      section.parts = params.heads;
      section.granule_tokens = keys ? span : 1;
      section.granule_floats =
          keys ? kernels::RoundUpToKeyBlock(span) * params.score_width : params.value_width;
    }
  }
  return spec;
}

}  // namespace aft
