#include "model/gpu/gpu_linear.h"

#include "ATen/ops/_addmm_activation.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/isfinite.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/zeros.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/gpu/kernel_status.h"
#include "model/kernels/linear/packed_weight.h"

namespace aft {

absl::StatusOr<at::Tensor> ToFormat(const std::string& name, const at::Tensor& tensor,
                                    Number format, at::Device device) {
  const at::Tensor converted = tensor.to(ScalarTypeOf(format));
  if (format == Number::kFp16 && !at::isfinite(converted).all().item<bool>()) {
    return absl::DataLossError(absl::StrCat(name, " holds a number that is not finite in fp16"));
  }
  return converted.to(device);
}

absl::StatusOr<GpuLinear> GpuLinear::Create(const std::string& name, const at::Tensor& weight,
                                            const at::Tensor& bias, Number format,
                                            at::Device device) {
  const int64_t in = weight.size(1);
  GpuLinear linear;
  if (IsQuantized(format)) {
    const int64_t out = weight.size(0);
    const at::Tensor integers = at::zeros({out, kernels::cuda::QuantizedColumns(in)}, at::kChar);
    const at::Tensor scales = at::empty({out}, at::kFloat);
    for (int64_t n = 0; n < out; ++n) {
      scales.data_ptr<float>()[n] =
          kernels::QuantizeWeightRow(weight.const_data_ptr<float>() + n * in, in,
                                     integers.data_ptr<int8_t>() + n * integers.size(1));
    }
    linear.weight_ = integers.to(device);
    linear.scale_ = scales.to(device);
    if (bias.defined()) linear.bias_ = bias.to(device);
    return linear;
  }
  if (!bias.defined()) {
    AFT_ASSIGN_OR_RETURN(linear.weight_, ToFormat(name, weight, format, device));
    return linear;
  }
  const at::Tensor wide = at::zeros({weight.size(0), in + kBiasColumns}, at::kFloat);
  wide.narrow(1, 0, in).copy_(weight);
  at::Tensor rest = bias;
  constexpr int64_t kParts = 3;
  for (int64_t part = 0; part < kParts; ++part) {
    const at::Tensor rounded = rest.to(ScalarTypeOf(format)).to(at::kFloat);
    wide.select(1, in + part).copy_(rounded);
    rest = rest.sub(rounded);
  }
  AFT_ASSIGN_OR_RETURN(linear.weight_, ToFormat(name, wide, format, device));
  return linear;
}

GpuLinear GpuLinear::WithBias(const at::Tensor& bias) const {
  AFT_CHECK(scale_.defined());
  GpuLinear linear = *this;
  linear.bias_ = bias;
  return linear;
}

absl::StatusOr<GpuLinear> GpuLinear::Load(const WeightMap& tensors, const std::string& name,
                                          bool bias, Number format, at::Device device) {
  return Create(name, tensors.at(name + ".weight"),
                bias ? tensors.at(name + ".bias") : at::Tensor(), format, device);
}

// On the CPU, where tests run the network, LibTorch's operator uses the exact GELU instead.
bool GpuLinear::Activates(Activation activation, Number format, at::Device device) {
  if (IsQuantized(format)) return true;
  return device.is_cuda() && format == Number::kBf16 &&
         (activation == Activation::kRelu || activation == Activation::kGeluTanh);
}

kernels::cuda::ProductModel GpuLinear::Model(const at::Tensor& bias, Activation activation) const {
  return {columns(),  weight_.size(0), weight(), bias.defined() ? bias.const_data_ptr() : nullptr,
          activation, scale()};
}

absl::Status GpuLinear::ForwardInt8(const at::Tensor& x, const at::Tensor& bias,
                                    Activation activation, const at::Tensor& y,
                                    kernels::cuda::Stream stream) const {
  return KernelStatus(kernels::cuda::MultiplyInt8(
                          Model(bias, activation), {x.const_data_ptr(), Number::kInt8, x.stride(0)},
                          x.size(0), {y.data_ptr(), Number::kFp32, y.stride(0)}, stream),
                      "MultiplyInt8");
}

absl::StatusOr<bool> GpuLinear::MultiplyFewRows(const at::Tensor& x, const at::Tensor& bias,
                                                Activation activation, const at::Tensor& y,
                                                kernels::cuda::Stream stream) const {
  if (x.size(0) > kernels::cuda::kFewRows || weight_.scalar_type() != at::kBFloat16) return false;
  const kernels::cuda::ProductModel model = Model(bias, activation);
  const kernels::cuda::In in = {x.const_data_ptr(), Number::kBf16, x.stride(0)};
  if (!FitsFewRows(model, in)) return false;
  const Number out = y.scalar_type() == at::kFloat ? Number::kFp32 : Number::kBf16;
  AFT_RETURN_IF_ERROR(
      KernelStatus(kernels::cuda::MultiplyFewRows(model, in, x.size(0),
                                                  {y.data_ptr(), out, y.stride(0)}, stream),
                   "MultiplyFewRows"));
  return true;
}

absl::Status GpuLinear::ForwardActivated(const at::Tensor& x, const at::Tensor& bias,
                                         Activation activation, at::Tensor y,
                                         kernels::cuda::Stream stream) const {
  if (scale_.defined()) return ForwardInt8(x, bias, activation, y, stream);
  AFT_ASSIGN_OR_RETURN(const bool done, MultiplyFewRows(x, bias, activation, y, stream));
  if (done) return absl::OkStatus();
  at::_addmm_activation_out(y, bias, x, weight_.t(), /*beta=*/1, /*alpha=*/1,
                            /*use_gelu=*/activation == Activation::kGeluTanh);
  return absl::OkStatus();
}

absl::Status GpuLinear::Forward(const at::Tensor& x, at::Tensor y,
                                kernels::cuda::Stream stream) const {
  if (scale_.defined()) return ForwardInt8(x, bias_, Activation::kNone, y, stream);
  AFT_ASSIGN_OR_RETURN(const bool done,
                       MultiplyFewRows(x, at::Tensor(), Activation::kNone, y, stream));
  if (done) return absl::OkStatus();
  const at::Tensor transposed = weight_.t();
  if (x.scalar_type() == y.scalar_type()) {
    at::mm_out(y, x, transposed);
  } else if (x.is_cuda()) {
    at::mm_out(y, x, transposed, y.scalar_type());
  } else {
    // LibTorch writes wider sums only on CUDA. Tests that run the network on the CPU come here.
    y.copy_(at::mm(x.to(y.scalar_type()), transposed.to(y.scalar_type())));
  }
  return absl::OkStatus();
}

}  // namespace aft
