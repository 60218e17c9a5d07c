#pragma once

#include <cstdint>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/gpu/device_tensor.h"
#include "model/kernels/cuda/product/product.h"
#include "model/kernels/cuda/types.h"
#include "model/layers/weights.h"

namespace aft {

// A product with a bias has the bias in further columns of the weight, and x has ones in these
// columns. The bias is split into three parts whose sum has fp32's digits whatever the weights'
// format is. So it needs no pass of its own over y, and the rows keep their alignment. With int8
// weights there are no such columns.
inline constexpr int64_t kBiasColumns = 8;
inline constexpr int64_t BiasColumns(Number format) {
  return IsQuantized(format) ? 0 : kBiasColumns;
}

// The format of the activations in a network with such weights. With int8 these are fp32, and each
// row is quantized before a product reads it.
inline constexpr Number ActivationFormat(Number format) {
  return IsQuantized(format) ? Number::kFp32 : format;
}

// y = x W^T + b, summed in fp32 (OpenCudaQueue makes sure of that): few rows of bf16 by a kernel of
// ours, which reads the weights at a higher rate, and all others through LibTorch (cuBLAS). int8
// has kernels of ours for any number of rows, whose sums are exact; weights and rows are quantized
// as on the CPU. Immutable and thread-safe. Throws LibTorch's exceptions.
class GpuLinear {
 public:
  GpuLinear() = default;

  // weight [out, in] and bias [out] on the CPU, fp32. DATA_LOSS mentions `name` when the format
  // cannot hold the weights.
  static absl::StatusOr<GpuLinear> Create(const std::string& name, const at::Tensor& weight,
                                          const at::Tensor& bias, Number format, at::Device device);

  // Does that with "<name>.weight" and, with `bias`, "<name>.bias". REQUIRES: they exist.
  static absl::StatusOr<GpuLinear> Load(const WeightMap& tensors, const std::string& name,
                                        bool bias, Number format, at::Device device);

  // These weights with another bias [out] fp32, on the device. REQUIRES: int8 weights.
  GpuLinear WithBias(const at::Tensor& bias) const;

  // The columns of x: in, and kBiasColumns of ones when there is a bias. With int8 weights:
  // QuantizedColumns(in).
  int64_t columns() const { return weight_.size(1); }

  int64_t weight_bytes() const {
    return DeviceBytes(weight_) + DeviceBytes(scale_) + DeviceBytes(bias_);
  }

  // [out, columns()] in the weights' format, and for int8 the scales [out].
  const void* weight() const { return weight_.const_data_ptr(); }
  const float* scale() const { return scale_.defined() ? scale_.const_data_ptr<float>() : nullptr; }

  // x [rows, columns()] in the weights' format -> y [rows, out] in that format or fp32; for int8 x
  // are rows of a DeviceBuffer and y is fp32. The rows of both may have gaps between them. `stream`
  // is LibTorch's current one. INTERNAL: a launch failed.
  absl::Status Forward(const at::Tensor& x, at::Tensor y, kernels::cuda::Stream stream) const;

  // Whether ForwardActivated supports this. fp32 is not supported: the library's GELU is only
  // accurate to 5e-6. int8 supports every activation.
  static bool Activates(Activation activation, Number format, at::Device device);

  // y = activation(x W^T + bias) while the product is stored, without another pass over y. x, bias
  // [out] and y are in the weights' format; for int8 bias and y are fp32, and the bias may be
  // undefined. REQUIRES: Activates.
  absl::Status ForwardActivated(const at::Tensor& x, const at::Tensor& bias, Activation activation,
                                at::Tensor y, kernels::cuda::Stream stream) const;

 private:
  // Computes y by the kernel for few rows (kernels::cuda::MultiplyFewRows), if it supports these
  // matrices. bias: undefined for none. Returns whether it did.
  absl::StatusOr<bool> MultiplyFewRows(const at::Tensor& x, const at::Tensor& bias,
                                       Activation activation, const at::Tensor& y,
                                       kernels::cuda::Stream stream) const;

  absl::Status ForwardInt8(const at::Tensor& x, const at::Tensor& bias, Activation activation,
                           const at::Tensor& y, kernels::cuda::Stream stream) const;
  kernels::cuda::ProductModel Model(const at::Tensor& bias, Activation activation) const;

  at::Tensor weight_;
  at::Tensor scale_;  // only with int8 weights, and so is the bias
  at::Tensor bias_;
};

// Converts `tensor` [..], which is on the CPU, to `format` and copies it to the device. DATA_LOSS
// names it when a number is too large for the format.
absl::StatusOr<at::Tensor> ToFormat(const std::string& name, const at::Tensor& tensor,
                                    Number format, at::Device device);

}  // namespace aft
