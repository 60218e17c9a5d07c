#pragma once

#include <cstdint>

// How often a sequence has had one token, and how penalties change the token's logit. CPU and GPU
// share this definition: it is C++17 and constexpr for nvcc.
namespace aft {

// A token that occurs in the sequence, prompt included, has kSeen. One that the sequence sampled
// has kSampled too, and the low bits of the index of the output after the last time.
inline constexpr uint32_t kSeen = 0x80000000;
inline constexpr uint32_t kSampled = 0x40000000;
inline constexpr uint32_t kIndexBits = 0x3FFFFFFF;

struct TokenCount {
  float sampled = 0.0F;  // how often the sequence sampled it, as counted at that output
  uint32_t use = 0;
};

constexpr bool operator==(const TokenCount& a, const TokenCount& b) {
  return a.sampled == b.sampled && a.use == b.use;
}

// The fields of SamplingParams (model/api/sampling_params.h), which explains them.
struct Penalties {
  float repetition = 1.0F;
  float presence = 0.0F;
  float frequency = 0.0F;
  float decay = 1.0F;

  constexpr bool any() const { return repetition != 1.0F || presence != 0.0F || frequency != 0.0F; }
};

template <typename Params>
constexpr Penalties PenaltiesOf(const Params& params) {
  return {params.repetition_penalty, params.presence_penalty, params.frequency_penalty,
          params.penalty_decay};
}

// Only multiplies, so no compiler fuses operations, and all devices get the same bits.
constexpr double Power(double base, uint32_t exponent) {
  double power = 1.0;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) power *= base;
    base *= base;
  }
  return power;
}

// How often the sequence sampled the token, as counted at `output_index`. The decay is computed
// when a count is read, so that a count stays as it is while its token is not sampled.
constexpr float TimesAt(const TokenCount& count, float decay, uint64_t output_index) {
  if (decay == 1.0F) return count.sampled;
  const uint32_t since = (static_cast<uint32_t>(output_index) - count.use) & kIndexBits;
  return static_cast<float>(static_cast<double>(count.sampled) *
                            Power(static_cast<double>(decay), since));
}

constexpr TokenCount WithSeen(TokenCount count) { return {count.sampled, count.use | kSeen}; }

// The count at the output after `output_index`, where the token was sampled. `counted`: IsCounted.
constexpr TokenCount WithSample(const TokenCount& count, float decay, uint64_t output_index,
                                bool counted) {
  const uint64_t next = output_index + 1;
  const float before = TimesAt(count, decay, next);
  return {counted ? before + 1.0F : before,
          kSeen | kSampled | (static_cast<uint32_t>(next) & kIndexBits)};
}

// Applies the repetition penalty first, then presence and frequency. The products are exact in
// double, so the result does not depend on whether a compiler fuses them. A logit above -inf stays
// above -inf. REQUIRES: logit is not NaN.
constexpr float Penalised(float logit, const TokenCount& count, const Penalties& penalties,
                          uint64_t output_index) {
  constexpr double kLargest = 3.4028234663852886e38;  // largest float
  if (count.use == 0 || static_cast<double>(logit) < -kLargest) return logit;
  const double repetition = static_cast<double>(penalties.repetition);
  double value = static_cast<double>(logit);
  value = value > 0.0 ? value / repetition : value * repetition;
  if ((count.use & kSampled) != 0) {
    const float times = TimesAt(count, penalties.decay, output_index);
    value -= static_cast<double>(penalties.presence);
    value -= static_cast<double>(penalties.frequency) * static_cast<double>(times);
  }
  if (value < -kLargest) value = -kLargest;
  if (value > kLargest) value = kLargest;
  return static_cast<float>(value);
}

}  // namespace aft
