#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "model/api/sampling_params.h"
#include "tests/property/random_inputs.h"

namespace aft::server {

// Random biases and bans; the tokens `ends` end an output. Sometimes only tokens that have a rule
// are allowed. Some tokens that do not end an output are always allowed.
inline std::shared_ptr<const LogitRules> RandomRules(TestRandom& random, int64_t vocab_size,
                                                     const std::vector<TokenId>& ends) {
  auto rules = std::make_shared<LogitRules>();
  rules->only_these = random.Below(3) == 0;
  for (TokenId id = 0; id < vocab_size; ++id) {
    LogitRule rule = {.id = id};
    for (const TokenId end : ends) rule.ends |= end == id ? 1 : 0;
    const bool kept = rule.ends == 0 && id % 16 == 3;
    if (!kept && random.Below(4) == 0) rule.bias = kBannedBias;
    if (!kept && rule.ends == 0 && random.Below(2) == 0) continue;
    if (rule.bias == 0.0F && random.Below(8) == 0) rule.bias = 1.5F;
    rules->rules.push_back(rule);
  }
  return rules;
}

}  // namespace aft::server
