#include "model/state/state_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace aft {
namespace {

constexpr int64_t Floats(int64_t bytes) { return bytes / static_cast<int64_t>(sizeof(float)); }

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
  pool.layout_ = std::make_shared<const SlotLayout>(parts);
  pool.slots_ = slots;
  const int64_t stride = pool.layout_->floats();
  AFT_ASSIGN_OR_RETURN(pool.memory_,
                       device.Allocate(stride * slots, absl::StrCat("states of ", slots, " slots"),
                                       pool.layout_->grows()));
  pool.scratch_floats_ = ScratchBytes(parts) / static_cast<int64_t>(sizeof(float));
  AFT_ASSIGN_OR_RETURN(pool.scratch_,
                       AlignedBuffer::Create(pool.scratch_floats_ * slots,
                                             absl::StrCat("scratch of ", slots, " slots")));
  float* scratch = pool.scratch_.data();
  for (int64_t i = 0; i < pool.layout_->layers(); ++i) {
    const int64_t floats = parts[static_cast<size_t>(i)].scratch_floats;
    pool.parts_.push_back({pool.memory_.data + pool.layout_->layer_offset(i), stride,
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
  if (position > 0 && !layout_->grows()) {
    return device_->Copy(Slot(to), Slot(from), layout_->bytes());
  }
  return ForEachUsed(*layout_, position, [&](int64_t offset, int64_t bytes) {
    return device_->Copy(Slot(to) + offset, Slot(from) + offset, bytes);
  });
}

absl::Status StatePool::ReadSlot(int32_t slot, int64_t position, const char* bytes) {
  ForgetScratch(slot);
  return ForEachUsed(*layout_, position, [&](int64_t offset, int64_t size) {
    return device_->CopyFromHost(Slot(slot) + offset, std::exchange(bytes, bytes + size), size);
  });
}

absl::StatusOr<DeviceFloats> StatePool::CopyOf(int32_t slot, int64_t position,
                                               Device& memory) const {
  const int64_t bytes = layout_->grows() ? layout_->UsedBytes(position) : layout_->bytes();
  AFT_ASSIGN_OR_RETURN(DeviceFloats copy,
                       memory.Allocate(Floats(bytes), "a kept state", /*lazy=*/true));
  // As in CopySlot: if the state does not grow, one copy costs a GPU less than several.
  if (!layout_->grows()) {
    AFT_RETURN_IF_ERROR(device_->Copy(copy.data, Slot(slot), bytes));
    return copy;
  }
  float* to = copy.data;
  AFT_RETURN_IF_ERROR(ForEachUsed(*layout_, position, [&](int64_t offset, int64_t size) {
    return device_->Copy(std::exchange(to, to + Floats(size)), Slot(slot) + offset, size);
  }));
  return copy;
}

absl::StatusOr<StatePool::Kept> StatePool::Keep(int32_t slot, int64_t position) const {
  AFT_ASSIGN_OR_RETURN(DeviceFloats copy, CopyOf(slot, position, *device_));
  return Kept{std::move(copy), nullptr, position, layout_};
}

absl::StatusOr<StatePool::Kept> StatePool::KeepOnHost(int32_t slot, int64_t position) const {
  std::shared_ptr<const HostFloats> kept;
  absl::StatusOr<DeviceFloats> copy = CopyOf(slot, position, *device_);
  if (absl::IsResourceExhausted(copy.status())) {
    AFT_ASSIGN_OR_RETURN(DeviceFloats on_host, CopyOf(slot, position, Host()));
    AFT_RETURN_IF_ERROR(device_->Synchronize());
    AFT_ASSIGN_OR_RETURN(kept, Host().CopyToHost(std::move(on_host)));
  } else {
    AFT_RETURN_IF_ERROR(copy.status());
    AFT_ASSIGN_OR_RETURN(kept, device_->CopyToHost(*std::move(copy)));
  }
  return Kept{{}, std::move(kept), position, layout_};
}

absl::Status StatePool::TakeBack(int32_t slot, const Kept& kept) {
  ForgetScratch(slot);
  const float* from = kept.memory.data;
  if (kept.host_memory != nullptr) {
    AFT_ASSIGN_OR_RETURN(from, kept.host_memory->Get());
  }
  const auto copy = [&](float* to, int64_t bytes) {
    const float* const here = std::exchange(from, from + Floats(bytes));
    return kept.host_memory != nullptr ? device_->CopyFromHost(to, here, bytes)
                                       : device_->Copy(to, here, bytes);
  };
  if (!layout_->grows()) return copy(Slot(slot), layout_->bytes());
  return ForEachUsed(*layout_, kept.position, [&](int64_t offset, int64_t bytes) {
    return copy(Slot(slot) + offset, bytes);
  });
}

absl::Status StatePool::Kept::Write(char* bytes) const {
  AFT_ASSIGN_OR_RETURN(const float* const floats, host_memory->Get());
  const char* from = reinterpret_cast<const char*>(floats);
  char* to = bytes;
  layout->ForEachUsed(position, [&](int64_t offset, int64_t count) {
    const int64_t size = count * static_cast<int64_t>(sizeof(float));
    const char* const range = layout->grows() ? std::exchange(from, from + size)
                                              : from + offset * static_cast<int64_t>(sizeof(float));
    std::memcpy(std::exchange(to, to + size), range, static_cast<size_t>(size));
  });
  layout->ClearUnwritten(position, bytes);
  return absl::OkStatus();
}

}  // namespace aft
