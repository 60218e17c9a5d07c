#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/api/sampling_params.h"
#include "model/sampling/penalties.h"
#include "model/sampling/ranked_logits.h"

namespace aft {

// Draws tokens from logits, on the CPU.
//
// The logits are those that Ruled, and then Penalised, give. The draw is Gumbel-max: the token with
// the highest logit / temperature + g wins, ties to the lower id, among the tokens that the
// cuts of SamplingNumbers keep. g = -log(-log(u)) is a pure function of seed, sequence, output
// index and token id: word (id mod 4) of Philox4x32-10 with key = seed and counter = (low half of
// the output index, sequence, id / 4, high half of the output index), as u = (word + 0.5) / 2^32,
// in double. So a draw depends on nothing else: not on the batch, the order of calls, or what top-k
// and top-p remove.
//
// A NaN logit counts as -inf (never drawn), +inf as the largest float (RankedLogits).
//
// Thread-compatible: holds the workspace, which grows to the largest vocabulary and is then reused.
class Sampler {
 public:
  // Draws the token at `output_index` (0 for the first generated token of a sequence) from
  // logits[0 .. vocab_size - 1] into `*token`, every field of it. `counts` [vocab_size] says what
  // the sequence has had; null: nothing, which is all the same to a sequence without penalties.
  // Errors: INTERNAL when no logit is above -inf: the model produced no distribution, or none over
  // the tokens that the rules and `banned`, whose tokens are not drawn either, leave.
  // REQUIRES: 1 <= vocab_size < 2^31; ids of `banned` are within the vocabulary.
  absl::Status Sample(const float* logits, int64_t vocab_size, const SamplingParams& params,
                      const TokenCount* counts, uint64_t output_index, SampledToken* token,
                      absl::Span<const TokenId> banned = {});

  // The log-probability of the token `id`, which somebody else chose, and the best `top` tokens
  // beside it: the same bits that Sample would report. Errors and requirements: as Sample;
  // 0 <= id < vocab_size, top >= 0.
  absl::Status Score(const float* logits, int64_t vocab_size, TokenId id, int32_t top,
                     SampledToken* token);

 private:
  using Rank = RankedLogits::Rank;
  struct Candidate {
    Rank rank;
    double weight;  // exp((logit - highest) / temperature)
  };

  // Fills adjusted_ with what rules, bans and penalties make of the logits.
  void Adjust(const float* logits, const SamplingParams& params, const TokenCount* counts,
              uint64_t output_index, absl::Span<const TokenId> banned);
  Rank LowestKept(const SamplingParams& params);
  Rank LowestOfTopP(float top_p);
  TokenId Draw(const SamplingParams& params, uint64_t output_index, Rank lowest_kept);

  RankedLogits logits_;
  std::vector<float> adjusted_;
  std::vector<Candidate> candidates_;
  std::vector<Rank> ranks_;
  std::vector<float> bounds_;  // of each token's score; see kernels::GumbelBounds
};

}  // namespace aft
