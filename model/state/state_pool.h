#ifndef AFT_MODEL_STATE_STATE_POOL_H_
#define AFT_MODEL_STATE_STATE_POOL_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "model/state/aligned_buffer.h"
#include "model/state/slot_layout.h"

namespace aft {

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
  static int64_t SlotBytes(const std::vector<StateSpec>& layers) {
    return SlotLayout(layers).bytes();
  }

  StateView layer(int64_t i) {
    return {buffer_.data() + layout_.layer_offset(i), layout_.floats()};
  }
  int32_t slots() const { return slots_; }
  int64_t slot_bytes() const { return layout_.bytes(); }
  int64_t bytes() const { return buffer_.bytes(); }

  // The state of a sequence of `position` tokens: what of its slot is in use, as bytes, in the
  // slot's order. Copying, writing and reading touch nothing else. REQUIRES: position >= 0.
  int64_t UsedBytes(int64_t position) const { return layout_.UsedBytes(position); }
  void CopySlot(int32_t from, int32_t to, int64_t position);
  void WriteSlot(int32_t slot, int64_t position, char* bytes) const;  // -> bytes[0 .. UsedBytes)
  void ReadSlot(int32_t slot, int64_t position, const char* bytes);

  // SlotLayout::fingerprint.
  uint64_t layout_fingerprint() const { return layout_.fingerprint(); }

 private:
  float* Slot(int32_t slot) { return buffer_.data() + slot * layout_.floats(); }
  const float* Slot(int32_t slot) const { return buffer_.data() + slot * layout_.floats(); }

  AlignedBuffer buffer_;
  SlotLayout layout_;
  int32_t slots_ = 0;
};

}  // namespace aft

#endif  // AFT_MODEL_STATE_STATE_POOL_H_
