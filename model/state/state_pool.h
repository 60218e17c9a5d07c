#pragma once

#include <cstdint>
#include <memory>
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
// A part is the state of one mixer (or another part of a layer); its bytes are the same on every
// device. A slot is not cleared when another sequence gets it: position 0 tells a mixer to ignore
// its content. If a state grows with the context, the host's memory is reserved, but pages are
// assigned only when a sequence first touches them, because few sequences ever reach the limit that
// their slots are made for. On a GPU all memory is allocated from the start. A slot's scratch
// (StateSpec::scratch_floats) is stored elsewhere, and is zeroed when a call of this class changes
// its state. Thread-compatible; different slots may be used on different threads. Calls fail where
// the device does (never on the host).
class StatePool {
 public:
  StatePool() = default;

  // RESOURCE_EXHAUSTED when there is not enough memory. `device` is borrowed. REQUIRES: each part's
  // sections cover it.
  static absl::StatusOr<StatePool> Create(const std::vector<StateSpec>& parts, int32_t slots,
                                          Device& device = Host());

  // The bytes of one slot with these parts.
  static int64_t SlotBytes(const std::vector<StateSpec>& parts) {
    return SlotLayout(parts).bytes();
  }
  static int64_t ScratchBytes(const std::vector<StateSpec>& parts);  // in addition to it

  const StateView& part(int64_t i) const { return parts_[static_cast<size_t>(i)]; }
  const std::vector<StateView>& parts() const { return parts_; }
  const SlotLayout& layout() const { return *layout_; }
  int32_t slots() const { return slots_; }
  int64_t slot_bytes() const { return layout_->bytes(); }
  int64_t bytes() const { return memory_.bytes(); }

  // These copy the state of a sequence of `position` tokens: the ranges of its slot that are in
  // use. ReadSlot has them as bytes in the slot's order (SlotLayout::UsedBytes). REQUIRES:
  // position >= 0.
  absl::Status CopySlot(int32_t from, int32_t to, int64_t position);
  absl::Status ReadSlot(int32_t slot, int64_t position, const char* bytes);

  // The state of a sequence outside the slots. It may be used on any thread, and after the pool.
  struct Kept {
    DeviceFloats memory;                            // set by Keep
    std::shared_ptr<const HostFloats> host_memory;  // set by KeepOnHost
    int64_t position = 0;
    std::shared_ptr<const SlotLayout> layout;

    int64_t bytes() const { return host_memory ? host_memory->bytes() : memory.bytes(); }

    // Writes bytes[0 .. layout->UsedBytes(position)): what the sequence itself has written, and
    // zeros for all else, so nothing of the slot's earlier sequences. Waits for the copy to the
    // host. REQUIRES: KeepOnHost made it.
    absl::Status Write(char* bytes) const;
  };
  // RESOURCE_EXHAUSTED: there is not enough memory. Keep uses the device's and does not wait for
  // it.
  absl::StatusOr<Kept> Keep(int32_t slot, int64_t position) const;
  // Uses the host's memory. Waits for the device only if it has no memory for a copy on the way.
  absl::StatusOr<Kept> KeepOnHost(int32_t slot, int64_t position) const;
  // Waits only for a copy to the host that has just begun. REQUIRES: this pool kept it.
  absl::Status TakeBack(int32_t slot, const Kept& kept);

 private:
  // Queues a copy of the state to new memory: the whole slot, or what is in use if it grows.
  absl::StatusOr<DeviceFloats> CopyOf(int32_t slot, int64_t position, Device& memory) const;
  float* Slot(int32_t slot) const { return memory_.data + slot * layout_->floats(); }
  void ForgetScratch(int32_t slot);

  Device* device_ = nullptr;
  DeviceFloats memory_;
  AlignedBuffer scratch_;
  int64_t scratch_floats_ = 0;  // of a slot
  std::shared_ptr<const SlotLayout> layout_;
  std::vector<StateView> parts_;
  int32_t slots_ = 0;
};

}  // namespace aft
