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

  // How tokens fill it. It is `parts` equal parts (one per head). A part is granules of
  // `granule_floats`, each with room for `granule_tokens` tokens, and token t is in granule
  // t / granule_tokens. A ring has fewer granules than that: it uses them again from the front.
  // With granule_tokens = 0 the first token writes all of the section.
  int64_t parts = 1;
  int64_t granule_tokens = 0;
  int64_t granule_floats = 0;
  // What one token writes of its granule. With lanes = 1 the tokens' bytes follow each other from
  // the front of the part. Else the granule is [blocks, token_bytes / 4, lanes] floats, and token i
  // of the granule is lane i % lanes of block i / lanes.
  int64_t token_bytes = 0;
  int64_t lanes = 1;
  // There are granules for every position that the model allows: granules that no token has begun
  // are not in use.
  bool grows = false;
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

  // Zeroes what a sequence of `position` tokens has not written yet: rows of rings, lanes of blocks
  // and padding, in which a slot still holds what its last sequence wrote. `used`: what ForEachUsed
  // names, range after range.
  void ClearUnwritten(int64_t position, char* used) const;

  // A number that changes with the layout: whether bytes of one slot fit another.
  uint64_t fingerprint() const;

 private:
  std::vector<StateSection> sections_;  // of all layers; offsets within the slot
  std::vector<int64_t> layer_offsets_;  // floats
  int64_t floats_ = 0;
  bool grows_ = false;
};

}  // namespace aft
