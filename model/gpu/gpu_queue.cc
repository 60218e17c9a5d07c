#include "model/gpu/gpu_queue.h"

#include <utility>

#include "ATen/ops/zeros.h"
#include "base/status_macros.h"
#include "model/gpu/device_tensor.h"

namespace aft {

absl::StatusOr<DeviceFloats> GpuQueue::Allocate(int64_t floats, absl::string_view /*what*/,
                                                bool /*lazy*/) {
  std::shared_ptr<at::Tensor> memory;
  AFT_RETURN_IF_ERROR(Run([&] {
    memory = Owned(at::zeros({floats}, at::TensorOptions(at::kFloat).device(device())));
    return absl::OkStatus();
  }));
  float* const data = memory->data_ptr<float>();
  return DeviceFloats{data, floats, std::move(memory)};
}

}  // namespace aft
