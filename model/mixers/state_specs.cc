#include "model/mixers/families.h"

namespace aft {

namespace {

// AheadTile (model/kernels/aft/aft_ahead-inl.h): the rows of hid floats of the scratch that a token
// reads and writes, on average over a block of kAftLookahead. These are its sums, written once and
// read once, the products of the tokens of its block before it, its own product, and the maximum.
constexpr int64_t kAheadRows = 2 + 2 + (kernels::kAftLookahead - 1) + 2 + 2;

// A ring: rows of tokens one after the other, `row_bytes` each, which are reused from the front.
StateSection RingSection(const char* name, int64_t offset, int64_t floats, int64_t rows,
                         int64_t row_bytes) {
  StateSection section = {name, offset, floats};
  section.granule_tokens = rows;
  section.granule_floats = floats;
  section.token_bytes = row_bytes;
  return section;
}

}  // namespace

StateSpec AftStateSpec(const kernels::AftStateLayout& layout, int64_t scratch_floats) {
  StateSpec spec;
  spec.floats = layout.Floats();
  spec.scratch_floats = scratch_floats;
  const int64_t rings = 2 * layout.ring_floats();
  const int64_t row = layout.ring_rows() > 0 ? rings / layout.ring_rows() : 0;
  spec.floats_per_step = 2 * layout.KRing();  // the sums are read and written
  if (scratch_floats > 0) {  // a block reads the rings once; one row enters, another leaves
    spec.floats_per_step += rings / kernels::kAftLookahead + kAheadRows * layout.hid + 2 * row;
  } else {
    spec.floats_per_step += rings + row;
  }
  const int64_t row_bytes = layout.hid * NumberBytes(layout.ring);
  spec.sections = {
      {"prefix", 0, layout.KRing()},
      RingSection("k_ring", layout.KRing(), layout.ring_floats(), layout.ring_rows(), row_bytes),
      RingSection("v_ring", layout.VRing(), layout.ring_floats(), layout.ring_rows(), row_bytes)};
  return spec;
}

StateSpec ConvStateSpec(const kernels::ConvStateLayout& layout) {
  StateSpec spec;
  spec.floats = layout.Floats();
  spec.floats_per_step = layout.KRing() + layout.Floats();  // the sums are written too
  if (layout.rows > 0) {
    spec.floats_per_step += (layout.Floats() - layout.KRing()) / layout.rows;  // the newest row
  }
  const int64_t number_bytes = NumberBytes(layout.bf16 ? Number::kBf16 : Number::kFp32);
  spec.sections = {{"prefix", 0, layout.KRing()},
                   RingSection("k_ring", layout.KRing(), layout.VRing() - layout.KRing(),
                               layout.rows, layout.heads * number_bytes),
                   RingSection("v_ring", layout.VRing(), layout.Floats() - layout.VRing(),
                               layout.rows, layout.hid * number_bytes)};
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
        spec.floats * 3 / 4;  // the state has two blocks; a step reads one and half of the other
  } else {
    spec.floats_per_token =
        params.heads * ((params.stores_keys() ? params.score_width : 0) + params.value_width);
  }
  // Each head fills from its front: keys in spans of interleaved blocks, values token by token.
  const int64_t span = params.block_size > 0 ? params.block_size : kernels::kKeyBlock;
  for (StateSection& section : spec.sections) {
    const bool keys = section.name == "keys";
    if (!keys && section.name != "values") continue;  // token 0 writes all of it
    const int64_t width = keys ? params.score_width : params.value_width;
    section.parts = params.heads;
    section.granule_tokens = keys ? span : 1;
    section.granule_floats = keys ? kernels::RoundUpToKeyBlock(span) * width : width;
    section.token_bytes = width * int64_t{sizeof(float)};
    section.lanes = keys ? kernels::kKeyBlock : 1;
    section.grows = !params.ring();
  }
  return spec;
}

StateSpec WkvStateSpec(int64_t floats) {
  StateSpec spec;
  spec.floats = floats;
  spec.sections = {{"sums", 0, floats}};  // a text's first token writes all of it
  spec.floats_per_step = 2 * floats;      // read and written
  return spec;
}

std::vector<StateSpec> ShiftStateSpecs(const NetworkConfig& config) {
  StateSpec spec;
  spec.floats = config.d_model;
  spec.sections = {{"shift", 0, config.d_model}};
  spec.floats_per_step = 2 * config.d_model;  // read and written
  const int count =
      (SpecOf(config.mixer.kind).token_shift ? 1 : 0) + (ShiftsFeedForward(config) ? 1 : 0);
  return std::vector<StateSpec>(static_cast<size_t>(count), spec);
}

}  // namespace aft
