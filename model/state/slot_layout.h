#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace aft {

// One part of a layer's state. Sizes are in floats (4 bytes) whatever it holds: a bf16 ring packs
// two numbers into each, and is rounded up.
struct StateSection {
  std::string name;
  int64_t offset = 0;  // floats from the start of the layer's state
  int64_t floats = 0;

  // How a section that grows with the context fills: it is `parts` equal parts (one per head), each
  // filled from its front by `granule_floats` for every `granule_tokens` tokens that have begun.
  // With granule_tokens = 0 all of it is in use from the first token on.
  int64_t parts = 1;
  int64_t granule_tokens = 0;
  int64_t granule_floats = 0;
};

// What a mixer keeps per sequence in one layer. The bytes are the same on every device.
struct StateSpec {
  int64_t floats = 0;
  std::vector<StateSection> sections;  // contiguous, in order
  // Of `floats`, what one more token of context fills, in mixers whose state grows up to the
  // model's max_seq_len; 0 where the state's size is constant.
  int64_t floats_per_token = 0;
  // What a token that is decoded reads and writes of state and scratch, of whatever context, on
  // average: what many streams cost in memory traffic. Of a state that grows, the context's
  // floats_per_token come to it.
  int64_t floats_per_step = 0;
  // Beside the state, what the part may keep in the host's memory to be faster: it follows from the
  // state, so it is never copied or saved. Zeros mean nothing.
  int64_t scratch_floats = 0;
};

// Where everything is in a slot: one contiguous block that holds a sequence's state in all layers,
// one after the other, every layer's part padded to 64 bytes. Immutable and thread-safe.
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

  // A number that changes with the layout: whether bytes of one slot fit another.
  uint64_t fingerprint() const;

 private:
  std::vector<StateSection> sections_;  // of all layers; offsets within the slot
  std::vector<int64_t> layer_offsets_;  // floats
  int64_t floats_ = 0;
  bool grows_ = false;
};

}  // namespace aft
