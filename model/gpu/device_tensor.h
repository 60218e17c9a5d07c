#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "model/kernels/cuda/types.h"

namespace aft {

// Copies on the device. They throw LibTorch's exceptions when the device has no memory.
at::Tensor ToDevice(const std::vector<float>& values, at::Device device);
at::Tensor ToDevice(const at::Tensor& tensor, at::Device device);

// Bytes of a tensor; 0 when it is undefined.
int64_t DeviceBytes(const at::Tensor& tensor);

at::ScalarType ScalarTypeOf(Number number);

// Numbers on the device that are used as dense matrices of the width that a step needs.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(int64_t numbers, Number type, at::Device device);

  int64_t bytes() const { return DeviceBytes(numbers_); }

  // Rows [first, first + count) of the matrix [.., width], for LibTorch and for kernels.
  at::Tensor Rows(int64_t first, int64_t count, int64_t width) const;
  kernels::cuda::In In(int64_t width, int64_t first = 0) const {
    return {At(first * width), type_, width};
  }
  kernels::cuda::Out Out(int64_t width, int64_t first = 0) const {
    return {At(first * width), type_, width};
  }

 private:
  void* At(int64_t number) const;

  at::Tensor numbers_;
  Number type_ = Number::kFp32;
};

}  // namespace aft
