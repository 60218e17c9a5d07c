#pragma once

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/ScalarType.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"

namespace aft {

// The linear layers of a network in one pass. Thread-compatible.
class TrainLinear {
 public:
  // The operands of products are rounded to `format`. `parameters` outlive this object.
  TrainLinear(const TensorMap& parameters, at::ScalarType format)
      : parameters_(parameters), format_(format) {}

  at::ScalarType format() const { return format_; }

  // x [..., in] -> [..., out] in `format`, by "<name>.weight" and, where it exists, "<name>.bias".
  at::Tensor Forward(const at::Tensor& x, const std::string& name) const {
    return Forward(x, name + ".weight", name + ".bias");
  }
  at::Tensor Forward(const at::Tensor& x, const std::string& weight, const std::string& bias) const;

 private:
  const TensorMap& parameters_;
  at::ScalarType format_;
};

// RWKV's token shift in differentiable form, for one pass over the layers in their order: it keeps
// the values of the first layer. Thread-compatible.
class TrainTokenShift {
 public:
  // REQUIRES: `config`, `parameters` and `linear` outlive this object.
  TrainTokenShift(const NetworkConfig& config, const TensorMap& parameters,
                  const TrainLinear& linear)
      : config_(config), parameters_(parameters), linear_(linear) {}

  // x [B, T, d] -> for each row of the tensor `shares` an input [B, T, d]: x mixed with the vector
  // of the token before. `carried` [B, d] is the vector before x, and becomes the last of x; null:
  // zeros are before x.
  std::vector<at::Tensor> Inputs(const at::Tensor& x, const std::string& shares,
                                 at::Tensor* carried) const;

  // x [B, T, d] -> the packed input [B, T, PackedWidth] fp32 of the mixer whose tensors begin with
  // `mixer`. `carried` as for Inputs. REQUIRES: the kind has a token shift.
  at::Tensor Pack(const at::Tensor& x, const std::string& mixer, at::Tensor* carried);

 private:
  const NetworkConfig& config_;
  const TensorMap& parameters_;
  const TrainLinear& linear_;
  at::Tensor first_values_;
};

}  // namespace aft
