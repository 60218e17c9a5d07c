#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/kernels/state_view.h"
#include "model/state/aligned_buffer.h"
#include "model/state/device.h"
#include "model/state/slot_layout.h"

namespace aft {

// The states of all sequences on one device, in one allocation that is made once. A slot is one
// contiguous block of slot_bytes(), so that a snapshot, a fork or a move is one copy:
//
//   slot 0: part 0, part 1, ...   slot 1: ...      every part is padded to 64 bytes
//
// A part is what one mixer (or another part of a layer) keeps; its bytes are the same on every
// device. A slot is not cleared when it changes hands: position 0 tells a mixer to ignore what is
// in it. Where a state grows with the context, the host's memory is reserved but comes page by
// page, at a sequence's first touch: few sequences ever reach the limit that their slots are made
// for; on a GPU all of it is there from the start. A slot's scratch (StateSpec::scratch_floats)
// lies elsewhere, and is zeroed when a call of this class changes its state. Thread-compatible;
// different slots may be used on different threads. Calls fail where the device does (never on the
// host).
class StatePool {
 public:
  StatePool() = default;

  // RESOURCE_EXHAUSTED when the memory is not there. `device` is borrowed. REQUIRES: each part's
  // sections cover it.
  static absl::StatusOr<StatePool> Create(const std::vector<StateSpec>& parts, int32_t slots,
                                          Device& device = Host());

  // Bytes of one slot with these parts.
  static int64_t SlotBytes(const std::vector<StateSpec>& parts) {
    return SlotLayout(parts).bytes();
  }
  static int64_t ScratchBytes(const std::vector<StateSpec>& parts);  // beside it

  const StateView& part(int64_t i) const { return parts_[static_cast<size_t>(i)]; }
  const std::vector<StateView>& parts() const { return parts_; }
  const SlotLayout& layout() const { return layout_; }
  int32_t slots() const { return slots_; }
  int64_t slot_bytes() const { return layout_.bytes(); }
  int64_t bytes() const { return memory_.bytes(); }

  // The state of a sequence of `position` tokens: what of its slot is in use, as bytes, in the
  // slot's order (SlotLayout::UsedBytes). Of that, WriteSlot gives what the sequence itself has
  // written, and zeros for the rest: nothing of the slot's sequences before. Write and Read wait
  // for the device. REQUIRES: position >= 0.
  absl::Status CopySlot(int32_t from, int32_t to, int64_t position);
  // -> bytes[0 .. UsedBytes)
  absl::Status WriteSlot(int32_t slot, int64_t position, char* bytes) const;
  absl::Status ReadSlot(int32_t slot, int64_t position, const char* bytes);

  // The state of a sequence beside the slots, on the same device; it may outlive the pool.
  struct Kept {
    DeviceFloats memory;
    int64_t position = 0;
  };
  // RESOURCE_EXHAUSTED: there is no memory. Neither call waits for the device.
  absl::StatusOr<Kept> Keep(int32_t slot, int64_t position) const;
  // REQUIRES: this pool kept it.
  absl::Status TakeBack(int32_t slot, const Kept& kept);

 private:
  float* Slot(int32_t slot) const { return memory_.data + slot * layout_.floats(); }
  void ForgetScratch(int32_t slot);

  Device* device_ = nullptr;
  DeviceFloats memory_;
  AlignedBuffer scratch_;
  int64_t scratch_floats_ = 0;  // of a slot
  SlotLayout layout_;
  std::vector<StateView> parts_;
  int32_t slots_ = 0;
};

}  // namespace aft
