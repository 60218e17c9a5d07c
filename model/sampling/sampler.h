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
// The draw uses the logits after Ruled and then Penalised. It is Gumbel-max: among the tokens that
// the limits of SamplingNumbers keep, the token with the highest logit / temperature + g wins, and
// ties go to the lower id. g = -log(-log(u)) is a pure function of seed, output index and token
// id: u = (word + 0.5) / 2^32 in double, where word is word (id mod 4) of Philox4x32-10 with key =
// seed and counter = (low half of the output index, 0, id / 4, high half of the output index). So a
// draw does not depend on the batch, on the order of calls, or on what top-k and top-p remove.
//
// A NaN logit counts as -inf (never drawn), and +inf as the largest float (RankedLogits).
//
// Thread-compatible: the object holds workspace, which grows to the largest vocabulary and is then
// reused.
class Sampler {
 public:
  // Draws the token at `output_index` (0 for the first generated token of a sequence) from logits[0
  // .. vocab_size - 1], and sets every field of `*token`. `counts` [vocab_size] says how often the
  // sequence has had each token; null means never, which makes no difference without penalties.
  // Tokens in `banned` are not drawn. Errors: INTERNAL when no logit is above -inf: the model
  // produced no distribution, or none over the tokens that the rules and `banned` leave. REQUIRES:
  // 1 <= vocab_size < 2^31; ids of `banned` are within the vocabulary.
  absl::Status Sample(const float* logits, int64_t vocab_size, const SamplingParams& params,
                      const TokenCount* counts, uint64_t output_index, SampledToken* token,
                      absl::Span<const TokenId> banned = {});

  // Computes the log-probability of the token `id`, which was chosen elsewhere, and the best `top`
  // tokens, with the bits that Sample would report. Errors and requirements: as Sample; 0 <= id <
  // vocab_size, top >= 0.
  absl::Status Score(const float* logits, int64_t vocab_size, TokenId id, int32_t top,
                     SampledToken* token);

 private:
  using Rank = RankedLogits::Rank;
  struct Candidate {
    Rank rank;
    double weight;  // exp((logit - highest) / temperature); temperature_last: 1 in its place
  };

  // Fills adjusted_ with the logits after rules, bans and penalties.
  void Adjust(const float* logits, const SamplingParams& params, const TokenCount* counts,
              uint64_t output_index, absl::Span<const TokenId> banned);
  Rank LowestKept(const SamplingParams& params);
  Rank LowestOfTopP(float top_p);
  TokenId Draw(const SamplingParams& params, uint64_t output_index, Rank lowest_kept);

  RankedLogits logits_;
  std::vector<float> adjusted_;
  std::vector<Candidate> candidates_;
  std::vector<Rank> ranks_;
  std::vector<float> bounds_;  // upper bounds of the tokens' scores; see kernels::GumbelBounds
};

}  // namespace aft
