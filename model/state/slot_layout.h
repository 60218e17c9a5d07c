#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace aft {

// One section of a layer's state. Sizes are in floats (4 bytes) whatever it holds: a bf16 ring
// packs two numbers into each float, and its size is rounded up.
struct StateSection {
  std::string name;
  int64_t offset = 0;  // floats from the start of the layer's state
  int64_t floats = 0;

  // How tokens fill the section. It consists of `parts` equal parts (one per head). A part consists
  // of granules of `granule_floats`, each with room for `granule_tokens` tokens, and token t is in
  // granule t / granule_tokens. A ring has fewer granules than that and reuses them from the front.
  // With granule_tokens = 0 the first token writes all of the section.
  int64_t parts = 1;
  int64_t granule_tokens = 0;
  int64_t granule_floats = 0;
  // The bytes of a granule that one token writes. With lanes = 1 the tokens' bytes follow each
  // other from the front of the part. Otherwise the granule is [blocks, token_bytes / 4, lanes]
  // floats, and token i of the granule is lane i % lanes of block i / lanes.
  int64_t token_bytes = 0;
  int64_t lanes = 1;
  // There are granules for every position that the model allows. Those without tokens are unused.
  bool grows = false;
};

// The state that a mixer keeps per sequence in one layer. Its bytes are the same on every device.
struct StateSpec {
  int64_t floats = 0;
  std::vector<StateSection> sections;  // contiguous, in order
  // The part of `floats` that one more token of context fills, in mixers whose state grows up to
  // the model's max_seq_len; 0 if the state's size is constant.
  int64_t floats_per_token = 0;
  // The floats of state and scratch that a decoded token reads and writes on average, independent
  // of the context. They say what many streams cost in memory traffic. If the state grows, the
  // context's floats_per_token are added to them.
  int64_t floats_per_step = 0;
  // Scratch in the host's memory that the mixer may use in addition to the state, to be faster. It
  // can be computed from the state, so it is never copied or saved. Zeros mean that it is empty.
  int64_t scratch_floats = 0;
};

// The layout of a slot: one contiguous block that holds a sequence's state in all layers, one after
// the other, with every layer's part padded to 64 bytes. Immutable and thread-safe.
class SlotLayout {
 public:
  SlotLayout() = default;
  // REQUIRES: each layer's sections cover it.
  explicit SlotLayout(const std::vector<StateSpec>& layers);

  int64_t layers() const { return static_cast<int64_t>(layer_offsets_.size()); }
  int64_t layer_offset(int64_t i) const {
    return layer_offsets_[static_cast<size_t>(i)];
  }  // floats
  int64_t floats() const { return floats_; }
  int64_t bytes() const { return floats_ * static_cast<int64_t>(sizeof(float)); }
  bool grows() const { return grows_; }  // some section fills with the context

  // Calls fn(offset, floats) for each contiguous range of a slot that a sequence of `position`
  // tokens uses, in the slot's order. REQUIRES: position >= 0.
  void ForEachUsed(int64_t position, absl::FunctionRef<void(int64_t, int64_t)> fn) const;
  int64_t UsedBytes(int64_t position) const;

  // Zeroes everything that a sequence of `position` tokens has not written yet: rows of rings,
  // lanes of blocks and padding, in which a slot still holds data of its previous sequence. `used`
  // holds the ranges of ForEachUsed, one after the other.
  void ClearUnwritten(int64_t position, char* used) const;

  // A number that changes with the layout. It tells whether bytes of one slot fit another.
  uint64_t fingerprint() const;

 private:
  std::vector<StateSection> sections_;  // of all layers; offsets within the slot
  std::vector<int64_t> layer_offsets_;  // floats
  int64_t floats_ = 0;
  bool grows_ = false;
};

}  // namespace aft
