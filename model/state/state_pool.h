#ifndef AFT_MODEL_STATE_STATE_POOL_H_
#define AFT_MODEL_STATE_STATE_POOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "model/state/aligned_buffer.h"

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
};

// One layer's states: that of slot i starts at base + i * slot_stride, 64-byte aligned.
struct StateView {
  float* base = nullptr;
  int64_t slot_stride = 0;  // floats
};

// The states of all sequences, in one allocation that is made once. A slot is one contiguous block
// of slot_bytes(), so that a snapshot, a fork or a move is one copy:
//
//   slot 0: layer 0, layer 1, ...   slot 1: ...      every layer's part is padded to 64 bytes
//
// A slot is not cleared when it changes hands: position 0 tells a mixer to ignore what is in it.
// Where a state grows with the context, memory is reserved but comes page by page, at a sequence's
// first touch: few sequences ever reach the limit that their slots are made for.
// Thread-compatible; different slots may be used on different threads.
class StatePool {
 public:
  StatePool() = default;

  // RESOURCE_EXHAUSTED when the memory is not there. REQUIRES: each layer's sections cover it.
  static absl::StatusOr<StatePool> Create(const std::vector<StateSpec>& layers, int32_t slots);

  // Bytes of one slot with these layers.
  static int64_t SlotBytes(const std::vector<StateSpec>& layers);

  StateView layer(int64_t i) {
    return {buffer_.data() + layer_offsets_[static_cast<size_t>(i)], slot_floats_};
  }
  int32_t slots() const { return slots_; }
  int64_t slot_bytes() const { return slot_floats_ * static_cast<int64_t>(sizeof(float)); }
  int64_t bytes() const { return buffer_.bytes(); }

  // The state of a sequence of `position` tokens: what of its slot is in use, as bytes, in the
  // slot's order. Copying, writing and reading touch nothing else. REQUIRES: position >= 0.
  int64_t UsedBytes(int64_t position) const;
  void CopySlot(int32_t from, int32_t to, int64_t position);
  void WriteSlot(int32_t slot, int64_t position, char* bytes) const;  // -> bytes[0 .. UsedBytes)
  void ReadSlot(int32_t slot, int64_t position, const char* bytes);

  // A number that changes with the layout of a slot: whether bytes of WriteSlot fit another pool.
  uint64_t layout_fingerprint() const;

 private:
  // Calls fn(offset, floats) for each contiguous range of a slot that `position` tokens use.
  void ForEachUsed(int64_t position, absl::FunctionRef<void(int64_t, int64_t)> fn) const;

  float* Slot(int32_t slot) { return buffer_.data() + slot * slot_floats_; }
  const float* Slot(int32_t slot) const { return buffer_.data() + slot * slot_floats_; }

  AlignedBuffer buffer_;
  std::vector<StateSection> sections_;  // of all layers; offsets within the slot
  std::vector<int64_t> layer_offsets_;  // floats
  int64_t slot_floats_ = 0;
  int32_t slots_ = 0;
};

}  // namespace aft

#endif  // AFT_MODEL_STATE_STATE_POOL_H_
