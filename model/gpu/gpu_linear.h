#pragma once

#include <cstdint>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/kernels/cuda/types.h"
#include "model/layers/weights.h"

namespace aft {

// A product with a bias has the bias in further columns of the weight, and x has ones in these
// columns. The bias is split into three parts whose sum has fp32's digits whatever the weights'
// format is. So it needs no pass of its own over y, and the rows keep their alignment.
inline constexpr int64_t kBiasColumns = 8;

// y = x W^T + b, summed in fp32 (OpenCudaQueue makes sure of that): few rows of bf16 by a kernel of
// ours, which reads the weights at a higher rate, and all others through LibTorch (cuBLAS).
// Immutable and thread-safe. Throws LibTorch's exceptions.
class GpuLinear {
 public:
  GpuLinear() = default;

  // weight [out, in] on the device, in the format of the products.
  explicit GpuLinear(const at::Tensor& weight) : weight_(weight) {}

  // weight [out, in] and bias [out] on the CPU, fp32. DATA_LOSS mentions `name` when the format
  // cannot hold the weights.
  static absl::StatusOr<GpuLinear> Create(const std::string& name, const at::Tensor& weight,
                                          const at::Tensor& bias, Number format, at::Device device);

  // Does that with "<name>.weight" and, with `bias`, "<name>.bias". REQUIRES: they exist.
  static absl::StatusOr<GpuLinear> Load(const WeightMap& tensors, const std::string& name,
                                        bool bias, Number format, at::Device device);

  // The columns of x: in, and kBiasColumns of ones when there is a bias.
  int64_t columns() const { return weight_.size(1); }

  int64_t weight_bytes() const { return static_cast<int64_t>(weight_.nbytes()); }

  // x [rows, columns()] in the weights' format -> y [rows, out] in that format or fp32. The rows of
  // both may have gaps between them. `stream` is LibTorch's current one. INTERNAL: a launch failed.
  absl::Status Forward(const at::Tensor& x, at::Tensor y, kernels::cuda::Stream stream) const;

  // Whether ForwardActivated supports this. fp32 is not supported: the library's GELU is only
  // accurate to 5e-6.
  static bool Activates(Activation activation, Number format, at::Device device);

  // y = activation(x W^T + bias) while the product is stored, without another pass over y. x, bias
  // [out] and y are in the weights' format. REQUIRES: Activates.
  absl::Status ForwardActivated(const at::Tensor& x, const at::Tensor& bias, Activation activation,
                                at::Tensor y, kernels::cuda::Stream stream) const;

 private:
  // Computes y by the kernel for few rows (kernels::cuda::MultiplyFewRows), if it supports these
  // matrices. bias: undefined for none. Returns whether it did.
  absl::StatusOr<bool> MultiplyFewRows(const at::Tensor& x, const at::Tensor& bias,
                                       Activation activation, const at::Tensor& y,
                                       kernels::cuda::Stream stream) const;

  at::Tensor weight_;
};

// Converts `tensor` [..], which is on the CPU, to `format` and copies it to the device. DATA_LOSS
// names it when a number is too large for the format.
absl::StatusOr<at::Tensor> ToFormat(const std::string& name, const at::Tensor& tensor,
                                    Number format, at::Device device);

}  // namespace aft
