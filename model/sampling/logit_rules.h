#pragma once

#include <cstdint>

#include "model/api/sampling_params.h"

// How rules change logits. CPU and GPU share this definition, as they do penalties.h.
namespace aft {

// `early`: the output's index is below SamplingParams::ends_from. REQUIRES: logit is not NaN.
constexpr float Ruled(float logit, const LogitRule& rule, bool early) {
  return early && rule.ends != 0 ? kBannedBias : logit + rule.bias;
}

// The index of the first of `count` rules for a token from `id` on, or `count` if there is none.
constexpr int32_t FirstRule(const LogitRule* rules, int32_t count, TokenId id) {
  int32_t begin = 0;
  int32_t end = count;
  while (begin < end) {
    const int32_t middle = begin + (end - begin) / 2;
    if (rules[middle].id < id) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Whether the frequency penalty counts a token that was sampled.
constexpr bool IsCounted(const LogitRule* rules, int32_t count, TokenId id) {
  const int32_t rule = FirstRule(rules, count, id);
  return rule == count || rules[rule].id != id || rules[rule].uncounted == 0;
}

}  // namespace aft
