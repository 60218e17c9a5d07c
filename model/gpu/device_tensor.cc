#include "model/gpu/device_tensor.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "absl/status/status.h"
#include "base/check.h"
#include "c10/core/Allocator.h"
#include "model/runtime/torch_guard.h"

namespace aft {

at::Tensor ToDevice(const std::vector<float>& values, at::Device device) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
  return tensor.to(device);
}

std::shared_ptr<at::Tensor> Owned(at::Tensor tensor) {
  return std::shared_ptr<at::Tensor>(new at::Tensor(std::move(tensor)), [](at::Tensor* released) {
    const std::unique_ptr<at::Tensor> owner(released);
    GuardTorch([&] {
      c10::DataPtr memory = owner->storage().set_data_ptr({});
      const c10::DeleterFnPtr release = memory.get_deleter();
      if (void* const context = memory.release_context(); context != nullptr) release(context);
      return absl::OkStatus();
    }).IgnoreError();
  });
}

int64_t DeviceBytes(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

at::ScalarType ScalarTypeOf(Number number) {
  switch (number) {
    case Number::kFp32:
      return at::kFloat;
    case Number::kBf16:
      return at::kBFloat16;
    case Number::kFp16:
      return at::kHalf;
    case Number::kInt8:
      return at::kChar;
  }
  AFT_CHECK(false);
}

DeviceBuffer::DeviceBuffer(int64_t numbers, Number type, at::Device device) : type_(type) {
  const at::TensorOptions options = at::TensorOptions(device).dtype(ScalarTypeOf(type));
  numbers_ = IsQuantized(type) ? at::zeros({numbers}, options) : at::empty({numbers}, options);
}

at::Tensor DeviceBuffer::Rows(int64_t first, int64_t count, int64_t width) const {
  const int64_t stride = Stride(width);
  return numbers_.narrow(0, first * stride, count * stride)
      .view({count, stride})
      .narrow(1, Head(), stride - Head());
}

void* DeviceBuffer::At(int64_t number) const {
  return static_cast<char*>(numbers_.mutable_data_ptr()) + number * NumberBytes(type_);
}

}  // namespace aft
