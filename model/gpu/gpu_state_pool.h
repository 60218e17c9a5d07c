#ifndef AFT_MODEL_GPU_GPU_STATE_POOL_H_
#define AFT_MODEL_GPU_GPU_STATE_POOL_H_

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/gpu/gpu_queue.h"
#include "model/kernels/cuda/types.h"
#include "model/state/slot_layout.h"

namespace aft {

// The states of all sequences on a GPU: StatePool's counterpart, with the same slots, byte for
// byte. States that grow are there whole from the start. Thread-compatible.
class GpuStatePool {
 public:
  GpuStatePool() = default;

  // Zeroed. `queue` must outlive the pool. RESOURCE_EXHAUSTED when the memory is not there.
  static absl::StatusOr<GpuStatePool> Create(const std::vector<StateSpec>& layers, int32_t slots,
                                             GpuQueue* queue);

  const std::vector<kernels::cuda::State>& layers() const { return layers_; }
  const SlotLayout& layout() const { return layout_; }

  // What StatePool does, as work on the queue. Write and Read also wait for it.
  absl::Status CopySlot(int32_t from, int32_t to, int64_t position);
  absl::Status WriteSlot(int32_t slot, int64_t position, char* bytes) const;
  absl::Status ReadSlot(int32_t slot, int64_t position, const char* bytes);

 private:
  float* Slot(int32_t slot) const { return base_ + slot * layout_.floats(); }

  GpuQueue* queue_ = nullptr;
  SlotLayout layout_;
  at::Tensor memory_;
  float* base_ = nullptr;
  std::vector<kernels::cuda::State> layers_;
};

}  // namespace aft

#endif  // AFT_MODEL_GPU_GPU_STATE_POOL_H_
