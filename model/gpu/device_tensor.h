#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "model/kernels/cuda/types.h"

namespace aft {

// A copy on the device. Throws LibTorch's exceptions when the device has no memory.
at::Tensor ToDevice(const std::vector<float>& values, at::Device device);

// Takes a tensor whose memory nothing else refers to, and releases that memory with the last copy
// of the pointer. LibTorch throws when it releases memory of several streams after the device was
// lost. In a tensor's destructor that would end the process. This function's pointers then leak the
// memory instead.
std::shared_ptr<at::Tensor> Owned(at::Tensor tensor);

// Bytes of a tensor; 0 when it is undefined.
int64_t DeviceBytes(const at::Tensor& tensor);

at::ScalarType ScalarTypeOf(Number number);

// Numbers on the device that are used as dense matrices of the width that a step needs. Those of
// int8 are quantized rows (kernels::cuda::QuantizedStride) and begin as zeros.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(int64_t numbers, Number type, at::Device device);

  int64_t bytes() const { return DeviceBytes(numbers_); }

  // Rows [first, first + count) of the matrix [.., width], for LibTorch and for kernels. Those of
  // int8 have QuantizedColumns(width) columns.
  at::Tensor Rows(int64_t first, int64_t count, int64_t width) const;
  kernels::cuda::In In(int64_t width, int64_t first = 0) const {
    return {At(Head() + first * Stride(width)), type_, Stride(width)};
  }
  kernels::cuda::Out Out(int64_t width, int64_t first = 0) const {
    return {At(Head() + first * Stride(width)), type_, Stride(width)};
  }

 private:
  // The numbers before the first one of a row, and from one row to the next.
  int64_t Head() const { return IsQuantized(type_) ? kernels::cuda::kScaleBytes : 0; }
  int64_t Stride(int64_t width) const {
    return IsQuantized(type_) ? kernels::cuda::QuantizedStride(width) : width;
  }
  void* At(int64_t number) const;

  at::Tensor numbers_;
  Number type_ = Number::kFp32;
};

}  // namespace aft
