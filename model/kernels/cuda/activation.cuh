#pragma once

#include "model/kernels/cuda/channels.cuh"

namespace aft::kernels::cuda {

template <int kCount>
__device__ inline void Activate(Activation activation, Channels<kCount>& group) {
  float(&x)[kCount] = group.x;
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:  // max(x, 0) as on the CPU, but NaN stays NaN
      for (float& value : x) value = value < 0.0F ? 0.0F : value;
      break;
    case Activation::kGelu: {
      constexpr float kSqrtHalf = 0.707106781F;
      for (float& value : x) value = 0.5F * value * (1.0F + erff(value * kSqrtHalf));
      break;
    }
    case Activation::kSquaredRelu:
      for (float& value : x) value = value < 0.0F ? 0.0F : value * value;
      break;
    case Activation::kGeluTanh: {  // 0.5 (1 + tanh(u)) = 1 / (1 + e^-2u)
      constexpr float kMinusTwiceSqrtTwoByPi = -1.59576912F;
      for (float& value : x) {
        const float u = value + 0.044715F * value * value * value;
        value *= Reciprocal(1.0F + Exp(kMinusTwiceSqrtTwoByPi * u));
      }
      break;
    }
  }
}

}  // namespace aft::kernels::cuda
