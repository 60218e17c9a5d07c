#pragma once

#include <cstdint>

// How often a sequence has had one token, and how penalties change the token's logit. CPU and GPU
// share this definition: it is C++17 and constexpr for nvcc.
namespace aft {

// kSeen: the token occurs in the sequence, prompt included. The bits below it count how often the
// sequence sampled the token, up to kMaxSampled.
using TokenCount = uint16_t;
inline constexpr TokenCount kSeen = 0x8000;
inline constexpr TokenCount kMaxSampled = 0x7FFF;

constexpr TokenCount WithSeen(TokenCount count) { return static_cast<TokenCount>(count | kSeen); }

constexpr TokenCount CountOf(uint32_t sampled) {
  return WithSeen(static_cast<TokenCount>(sampled < kMaxSampled ? sampled : kMaxSampled));
}

constexpr TokenCount WithSample(TokenCount count) {
  const bool full = (count & kMaxSampled) == kMaxSampled;
  return WithSeen(static_cast<TokenCount>(full ? count : count + 1));
}

// The fields of SamplingParams (model/api/sampling_params.h), which explains them.
struct Penalties {
  float repetition = 1.0F;
  float presence = 0.0F;
  float frequency = 0.0F;

  constexpr bool any() const { return repetition != 1.0F || presence != 0.0F || frequency != 0.0F; }
};

template <typename Params>
constexpr Penalties PenaltiesOf(const Params& params) {
  return {params.repetition_penalty, params.presence_penalty, params.frequency_penalty};
}

// Applies the repetition penalty first, then presence and frequency. The products are exact in
// double, so the result does not depend on whether a compiler fuses them. A logit above -inf stays
// above -inf. REQUIRES: logit is not NaN.
constexpr float Penalised(float logit, TokenCount count, const Penalties& penalties) {
  constexpr double kLargest = 3.4028234663852886e38;  // largest float
  if (count == 0 || static_cast<double>(logit) < -kLargest) return logit;
  const double repetition = static_cast<double>(penalties.repetition);
  double value = static_cast<double>(logit);
  value = value > 0.0 ? value / repetition : value * repetition;
  const int sampled = count & kMaxSampled;
  if (sampled > 0) {
    value -= static_cast<double>(penalties.presence);
    value -= static_cast<double>(penalties.frequency) * sampled;
  }
  if (value < -kLargest) value = -kLargest;
  if (value > kLargest) value = kLargest;
  return static_cast<float>(value);
}

}  // namespace aft
