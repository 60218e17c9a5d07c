#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "model/api/sampling_params.h"
#include "model/sampling/token_counts.h"

namespace aft {

inline std::vector<float> RandomLogits(std::mt19937& random, size_t count, double spread) {
  std::normal_distribution<double> normal(0.0, spread);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = static_cast<float>(normal(random));
  return logits;
}

// The tokens that a sequence has had: those of the text before its output, and its output.
struct History {
  std::vector<TokenUse> had;
  std::vector<TokenId> sampled;

  std::vector<TokenCount> Counts(const SamplingParams& params, uint64_t output_index,
                                 size_t vocab_size) const {
    std::vector<TokenCount> counts;
    CountTokens({params, output_index, had, sampled}, static_cast<int64_t>(vocab_size), counts);
    return counts;
  }
};

inline History RandomHistory(std::mt19937& random, size_t vocab_size) {
  History history;
  for (TokenId id = 0; id < static_cast<TokenId>(vocab_size); ++id) {
    const auto sampled = static_cast<uint32_t>(random() % 3);
    if (random() % 3 != 0) history.had.push_back({.id = id, .sampled = sampled});
  }
  for (auto left = random() % 40; left > 0; --left) {
    history.sampled.push_back(static_cast<TokenId>(random() % vocab_size));
  }
  return history;
}

// Random biases, bans and tokens that end the output. Sometimes only tokens with a rule may be
// drawn. One token is always left.
inline std::shared_ptr<const LogitRules> RandomRules(std::mt19937& random, size_t vocab_size) {
  if (random() % 2 == 0) return nullptr;
  auto rules = std::make_shared<LogitRules>();
  rules->only_these = random() % 3 == 0;
  const auto left = static_cast<TokenId>(random() % vocab_size);
  for (TokenId id = 0; id < static_cast<TokenId>(vocab_size); ++id) {
    if (id != left && random() % 3 != 0) continue;
    LogitRule rule = {.id = id, .bias = 0.25F * static_cast<float>(random() % 33) - 4.0F};
    if (id != left && random() % 4 == 0) rule.bias = kBannedBias;
    if (id != left && random() % 4 == 0) rule.ends = 1;
    rule.uncounted = random() % 2 == 0 ? 1 : 0;
    rules->rules.push_back(rule);
  }
  return rules;
}

}  // namespace aft
