#include "model/gpu/gpu_queue.h"

#include "ATen/ops/zeros.h"
#include "base/status_macros.h"

namespace aft {

absl::StatusOr<DeviceFloats> GpuQueue::Allocate(int64_t floats, absl::string_view /*what*/,
                                                bool /*lazy*/) {
  auto memory = std::make_shared<at::Tensor>();
  AFT_RETURN_IF_ERROR(Run([&] {
    *memory = at::zeros({floats}, at::TensorOptions(at::kFloat).device(device()));
    return absl::OkStatus();
  }));
  float* const data = memory->data_ptr<float>();
  return DeviceFloats{data, floats, std::move(memory)};
}

}  // namespace aft
