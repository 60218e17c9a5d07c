#include "model/mixers/families.h"

namespace aft {

namespace {

// AheadTile (model/kernels/aft_ahead-inl.h): rows of hid floats that a token reads and writes of
// the scratch, on average over a block of kAftLookahead. Its sums, written once and read once, the
// products of those of its block before it, its own product, the maximum.
constexpr int64_t kAheadRows = 2 + 2 + (kernels::kAftLookahead - 1) + 2 + 2;

}  // namespace

StateSpec AftStateSpec(const kernels::AftStateLayout& layout, int64_t scratch_floats) {
  StateSpec spec;
  spec.floats = layout.Floats();
  spec.scratch_floats = scratch_floats;
  const int64_t rings = 2 * layout.ring_floats();
  const int64_t row = layout.ring_rows() > 0 ? rings / layout.ring_rows() : 0;
  spec.floats_per_step = 2 * layout.KRing();  // the sums are read and written
  if (scratch_floats > 0) {  // the rings once a block; a row comes, another one goes
    spec.floats_per_step += rings / kernels::kAftLookahead + kAheadRows * layout.hid + 2 * row;
  } else {
    spec.floats_per_step += rings + row;
  }
  spec.sections = {{"prefix", 0, layout.KRing()},
                   {"k_ring", layout.KRing(), layout.ring_floats()},
                   {"v_ring", layout.VRing(), layout.ring_floats()}};
  return spec;
}

StateSpec ConvStateSpec(const kernels::ConvStateLayout& layout) {
  StateSpec spec;
  spec.floats = layout.Floats();
  spec.floats_per_step = layout.KRing() + layout.Floats();  // the sums are written too
  if (layout.rows > 0) {
    spec.floats_per_step += (layout.Floats() - layout.KRing()) / layout.rows;  // the newest row
  }
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
  if (params.ring()) {
    spec.floats_per_step =
        spec.floats * 3 / 4;  // of two blocks, the one before and half of its own
  } else {
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
