#include "model/gpu/gpu_state_pool.h"

#include "ATen/ops/zeros.h"
#include "absl/functional/function_ref.h"
#include "base/status_macros.h"

namespace aft {
namespace {

// fn(offset, bytes) for each range in use, until one fails.
absl::Status ForEachUsed(const SlotLayout& layout, int64_t position,
                         absl::FunctionRef<absl::Status(int64_t, int64_t)> fn) {
  absl::Status status;
  layout.ForEachUsed(position, [&](int64_t offset, int64_t floats) {
    if (status.ok()) status = fn(offset, floats * static_cast<int64_t>(sizeof(float)));
  });
  return status;
}

}  // namespace

absl::StatusOr<GpuStatePool> GpuStatePool::Create(const std::vector<StateSpec>& layers,
                                                  int32_t slots, GpuQueue* queue) {
  GpuStatePool pool;
  pool.queue_ = queue;
  pool.layout_ = SlotLayout(layers);
  const int64_t stride = pool.layout_.floats();
  AFT_RETURN_IF_ERROR(queue->Run([&] {
    pool.memory_ =
        at::zeros({slots * stride}, at::TensorOptions(at::kFloat).device(queue->device()));
    return absl::OkStatus();
  }));
  pool.base_ = pool.memory_.data_ptr<float>();
  for (int64_t i = 0; i < pool.layout_.layers(); ++i) {
    pool.layers_.push_back({pool.base_ + pool.layout_.layer_offset(i), stride});
  }
  return pool;
}

absl::Status GpuStatePool::CopySlot(int32_t from, int32_t to, int64_t position) {
  if (position > 0 && !layout_.grows()) return queue_->Copy(Slot(to), Slot(from), layout_.bytes());
  return ForEachUsed(layout_, position, [&](int64_t offset, int64_t bytes) {
    return queue_->Copy(Slot(to) + offset, Slot(from) + offset, bytes);
  });
}

absl::Status GpuStatePool::WriteSlot(int32_t slot, int64_t position, char* bytes) const {
  AFT_RETURN_IF_ERROR(ForEachUsed(layout_, position, [&](int64_t offset, int64_t size) {
    char* const to = bytes;
    bytes += size;
    return queue_->Copy(to, Slot(slot) + offset, size);
  }));
  return queue_->Synchronize();
}

absl::Status GpuStatePool::ReadSlot(int32_t slot, int64_t position, const char* bytes) {
  AFT_RETURN_IF_ERROR(ForEachUsed(layout_, position, [&](int64_t offset, int64_t size) {
    const char* const from = bytes;
    bytes += size;
    return queue_->Copy(Slot(slot) + offset, from, size);
  }));
  return queue_->Synchronize();
}

}  // namespace aft
