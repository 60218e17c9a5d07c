#include "model/state/state_pool.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace aft {
namespace {

// Calls fn(offset, bytes) for each range in use, until one call fails.
absl::Status ForEachUsed(const SlotLayout& layout, int64_t position,
                         absl::FunctionRef<absl::Status(int64_t, int64_t)> fn) {
  absl::Status status;
  layout.ForEachUsed(position, [&](int64_t offset, int64_t floats) {
    if (status.ok()) status = fn(offset, floats * static_cast<int64_t>(sizeof(float)));
  });
  return status;
}

}  // namespace

int64_t StatePool::ScratchBytes(const std::vector<StateSpec>& parts) {
  int64_t floats = 0;
  for (const StateSpec& part : parts) floats += RoundUpToLine(part.scratch_floats);
  return floats * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<StatePool> StatePool::Create(const std::vector<StateSpec>& parts, int32_t slots,
                                            Device& device) {
  StatePool pool;
  pool.device_ = &device;
  pool.layout_ = SlotLayout(parts);
  pool.slots_ = slots;
  const int64_t stride = pool.layout_.floats();
  AFT_ASSIGN_OR_RETURN(pool.memory_,
                       device.Allocate(stride * slots, absl::StrCat("states of ", slots, " slots"),
                                       pool.layout_.grows()));
  pool.scratch_floats_ = ScratchBytes(parts) / static_cast<int64_t>(sizeof(float));
  AFT_ASSIGN_OR_RETURN(pool.scratch_,
                       AlignedBuffer::Create(pool.scratch_floats_ * slots,
                                             absl::StrCat("scratch of ", slots, " slots")));
  float* scratch = pool.scratch_.data();
  for (int64_t i = 0; i < pool.layout_.layers(); ++i) {
    const int64_t floats = parts[static_cast<size_t>(i)].scratch_floats;
    pool.parts_.push_back({pool.memory_.data + pool.layout_.layer_offset(i), stride,
                           floats > 0 ? scratch : nullptr, pool.scratch_floats_});
    scratch += RoundUpToLine(floats);
  }
  return pool;
}

void StatePool::ForgetScratch(int32_t slot) {
  std::fill_n(scratch_.data() + slot * scratch_floats_, scratch_floats_, 0.0F);
}

absl::Status StatePool::CopySlot(int32_t from, int32_t to, int64_t position) {
  ForgetScratch(to);
  // On a GPU one copy costs less than the several that would leave out the padding between parts.
  if (position > 0 && !layout_.grows()) {
    return device_->Copy(Slot(to), Slot(from), layout_.bytes());
  }
  return ForEachUsed(layout_, position, [&](int64_t offset, int64_t bytes) {
    return device_->Copy(Slot(to) + offset, Slot(from) + offset, bytes);
  });
}

absl::Status StatePool::WriteSlot(int32_t slot, int64_t position, char* bytes) const {
  char* next = bytes;
  AFT_RETURN_IF_ERROR(ForEachUsed(layout_, position, [&](int64_t offset, int64_t size) {
    char* const to = next;
    next += size;
    return device_->Copy(to, Slot(slot) + offset, size);
  }));
  AFT_RETURN_IF_ERROR(device_->Synchronize());
  layout_.ClearUnwritten(position, bytes);
  return absl::OkStatus();
}

absl::Status StatePool::ReadSlot(int32_t slot, int64_t position, const char* bytes) {
  ForgetScratch(slot);
  AFT_RETURN_IF_ERROR(ForEachUsed(layout_, position, [&](int64_t offset, int64_t size) {
    const char* const from = bytes;
    bytes += size;
    return device_->Copy(Slot(slot) + offset, from, size);
  }));
  return device_->Synchronize();
}

absl::StatusOr<StatePool::Kept> StatePool::Keep(int32_t slot, int64_t position) const {
  const int64_t bytes = layout_.grows() ? layout_.UsedBytes(position) : layout_.bytes();
  Kept kept;
  kept.position = position;
  AFT_ASSIGN_OR_RETURN(kept.memory, device_->Allocate(bytes / static_cast<int64_t>(sizeof(float)),
                                                      "a kept state", /*lazy=*/true));
  // As in CopySlot: if the state does not grow, one copy costs a GPU less than several.
  if (!layout_.grows()) {
    AFT_RETURN_IF_ERROR(device_->Copy(kept.memory.data, Slot(slot), bytes));
    return kept;
  }
  float* to = kept.memory.data;
  AFT_RETURN_IF_ERROR(ForEachUsed(layout_, position, [&](int64_t offset, int64_t size) {
    float* const here = std::exchange(to, to + size / static_cast<int64_t>(sizeof(float)));
    return device_->Copy(here, Slot(slot) + offset, size);
  }));
  return kept;
}

absl::Status StatePool::TakeBack(int32_t slot, const Kept& kept) {
  ForgetScratch(slot);
  if (!layout_.grows()) return device_->Copy(Slot(slot), kept.memory.data, kept.memory.bytes());
  const float* from = kept.memory.data;
  return ForEachUsed(layout_, kept.position, [&](int64_t offset, int64_t size) {
    const float* const here =
        std::exchange(from, from + size / static_cast<int64_t>(sizeof(float)));
    return device_->Copy(Slot(slot) + offset, here, size);
  });
}

}  // namespace aft
