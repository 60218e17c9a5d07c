#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/api/sampling_params.h"

namespace aft {

// One position's logits in the model's order of preference, and their log-probabilities. The
// sampler draws from these numbers and scoring reports them, so both agree bit for bit.
//
// A NaN logit counts as -inf, and +inf as the largest float. Thread-compatible: the object holds
// workspace, which grows to the largest vocabulary and is then reused.
class RankedLogits {
 public:
  // A token's place in the order of preference, as one number: higher logits first, then lower ids.
  using Rank = uint64_t;
  static Rank RankOf(float logit, TokenId id);
  static float LogitOf(Rank rank);
  static TokenId IdOf(Rank rank);

  // NaN counts as -inf, +inf as the largest float, and -0 as 0: 0 and -0 are equal, so they must
  // have equal ranks.
  static float Finite(float logit);

  // Reads logits[0 .. vocab_size - 1]. Errors: INTERNAL when no logit is above -inf, because the
  // model produced no distribution. REQUIRES: 1 <= vocab_size < 2^31.
  absl::Status Assign(const float* logits, int64_t vocab_size);

  // The logits as given, but without NaN, +inf and -0.
  const std::vector<float>& values() const { return values_; }
  Rank best() const { return best_; }

  // Fills token->logprob with the log-probability of token->id, and token->top with the best `top`
  // tokens, or fewer when fewer have a logit above -inf. REQUIRES: 0 <= token->id < vocab_size, top
  // >= 0.
  void Report(int32_t top, SampledToken* token);

 private:
  std::vector<float> values_;
  Rank best_ = 0;
  std::vector<Rank> ranks_;
};

}  // namespace aft
