#include "model/kernels/norm.h"

#include <cmath>

#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void LayerNormRow(const float* x, int64_t width, const float* weight, const float* bias, float eps,
                  float* y) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = width / lanes * lanes;

  auto sums = hn::Zero(d);
  for (int64_t i = 0; i < whole; i += lanes) sums = hn::Add(sums, hn::LoadU(d, x + i));
  float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (int64_t i = whole; i < width; ++i) sum += x[i];
  const float mean = sum / static_cast<float>(width);

  // The variance takes a second pass, because E[x^2] - mean^2 would cancel.
  const auto means = hn::Set(d, mean);
  auto squares = hn::Zero(d);
  for (int64_t i = 0; i < whole; i += lanes) {
    const auto centred = hn::Sub(hn::LoadU(d, x + i), means);
    squares = hn::MulAdd(centred, centred, squares);
  }
  float square = hn::GetLane(hn::SumOfLanes(d, squares));
  for (int64_t i = whole; i < width; ++i) square += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0F / std::sqrt(square / static_cast<float>(width) + eps);

  const auto scales = hn::Set(d, scale);
  for (int64_t i = 0; i < whole; i += lanes) {
    const auto normal = hn::Mul(hn::Sub(hn::LoadU(d, x + i), means), scales);
    hn::StoreU(hn::MulAdd(normal, hn::LoadU(d, weight + i), hn::LoadU(d, bias + i)), d, y + i);
  }
  for (int64_t i = whole; i < width; ++i) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

void LayerNormRows(const float* x, int64_t width, const float* weight, const float* bias, float eps,
                   float* y, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    LayerNormRow(x + r * width, width, weight, bias, eps, y + r * width);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(LayerNormRows);

void LayerNorm(const float* x, int64_t width, const float* weight, const float* bias, float eps,
               float* y, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(LayerNormRows)(x, width, weight, bias, eps, y, begin, end);
}

}  // namespace aft::kernels
#endif
