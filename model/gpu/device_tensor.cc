#include "model/gpu/device_tensor.h"

#include <algorithm>

#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "base/check.h"

namespace aft {

at::Tensor ToDevice(const std::vector<float>& values, at::Device device) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
  return tensor.to(device);
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
