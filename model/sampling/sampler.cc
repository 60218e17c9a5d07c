#include "model/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>

#include "base/status_macros.h"
#include "model/sampling/philox.h"

namespace aft {
namespace {

double Gumbel(uint32_t word) {
  const double uniform = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -std::log(-std::log(uniform));
}

// Not below Gumbel(word), without its two logarithms. -log(u) >= 1 - u, so g <= -log(1 - u), and
// 1 - u = (~word + 0.5) / 2^32 has countl_zero(~word) leading zero bits.
double GumbelBound(uint32_t word) {
  constexpr double kLn2RoundedUp = 0.6931471806;
  return (std::countl_zero(~word) + 1) * kLn2RoundedUp;
}

}  // namespace

absl::Status Sampler::Sample(const float* logits, int64_t vocab_size, const SamplingParams& params,
                             const TokenCount* counts, uint64_t output_index, SampledToken* token) {
  token->id = 0;
  token->logprob = 0.0F;
  token->top.clear();
  const Penalties penalties = PenaltiesOf(params);
  const bool penalise = counts != nullptr && penalties.any();
  if (penalise) {
    penalised_.resize(static_cast<size_t>(vocab_size));
    for (size_t i = 0; i < penalised_.size(); ++i) {
      penalised_[i] = Penalised(RankedLogits::Finite(logits[i]), counts[i], penalties);
    }
  }
  AFT_RETURN_IF_ERROR(logits_.Assign(penalise ? penalised_.data() : logits, vocab_size));
  if (params.temperature > 0.0F) {
    token->id = Draw(params, output_index, LowestKept(params));
  } else {
    token->id = RankedLogits::IdOf(logits_.best());
  }
  if (params.top_logprobs < 0) return absl::OkStatus();
  if (penalise) AFT_RETURN_IF_ERROR(logits_.Assign(logits, vocab_size));
  logits_.Report(params.top_logprobs, token);
  return absl::OkStatus();
}

absl::Status Sampler::Score(const float* logits, int64_t vocab_size, TokenId id, int32_t top,
                            SampledToken* token) {
  AFT_RETURN_IF_ERROR(logits_.Assign(logits, vocab_size));
  token->id = id;
  logits_.Report(top, token);
  return absl::OkStatus();
}

// The tokens that min-p, top-k and top-p keep are those of at least the returned rank.
Sampler::Rank Sampler::LowestKept(const SamplingParams& params) {
  const std::vector<float>& logits = logits_.values();
  const bool limit_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
  const bool limit_p = params.top_p < 1.0F;
  const bool limit_min_p = params.min_p > 0.0F;
  if (!limit_k && !limit_p && !limit_min_p) return 0;

  const double highest = RankedLogits::LogitOf(logits_.best());
  const double lowest = limit_min_p ? highest + params.temperature * std::log(double{params.min_p})
                                    : -std::numeric_limits<double>::infinity();
  ranks_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < lowest) continue;
    ranks_.push_back(RankedLogits::RankOf(logits[i], static_cast<TokenId>(i)));
  }
  if (limit_k && ranks_.size() > static_cast<size_t>(params.top_k)) {
    const auto end = ranks_.begin() + params.top_k;
    std::nth_element(ranks_.begin(), end, ranks_.end(), std::greater<>());
    ranks_.erase(end, ranks_.end());
  }
  if (!limit_p) return *std::min_element(ranks_.begin(), ranks_.end());

  candidates_.resize(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const double logit = RankedLogits::LogitOf(ranks_[i]);
    candidates_[i] = {ranks_[i], std::exp((logit - highest) / double{params.temperature})};
  }
  return LowestOfTopP(params.top_p);
}

// Rank of the last candidate, from the best down, that is needed to reach `top_p` of all weight.
// Bisection by weight: each round places the better half in front and looks on one side only, so
// that the cost is linear, not that of sorting.
Sampler::Rank Sampler::LowestOfTopP(float top_p) {
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double missing = total * double{top_p};
  auto begin = candidates_.begin();
  auto end = candidates_.end();  // the answer is in [begin, end)
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end,
                     [](const Candidate& a, const Candidate& b) { return a.rank > b.rank; });
    double front = 0.0;
    for (auto it = begin; it != middle; ++it) front += it->weight;
    if (front >= missing) {
      end = middle;
    } else {
      missing -= front;
      begin = middle;
    }
  }
  return begin->rank;
}

TokenId Sampler::Draw(const SamplingParams& params, uint64_t output_index, Rank lowest_kept) const {
  const std::vector<float>& logits = logits_.values();
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(params.seed),
                                       static_cast<uint32_t>(params.seed >> 32)};
  const auto words_of = [&](size_t id) {
    return Philox4x32({static_cast<uint32_t>(output_index), params.sequence,
                       static_cast<uint32_t>(id / 4), static_cast<uint32_t>(output_index >> 32)},
                      key);
  };
  const double temperature = params.temperature;
  // The best token goes first: the score that it sets rules most others out without logarithms.
  TokenId winner = RankedLogits::IdOf(logits_.best());
  const size_t best_id = static_cast<size_t>(winner);
  double winning_score = logits[best_id] / temperature + Gumbel(words_of(best_id)[best_id % 4]);
  for (size_t first = 0; first < logits.size(); first += 4) {
    const std::array<uint32_t, 4> words = words_of(first);
    const size_t count = std::min<size_t>(4, logits.size() - first);
    for (size_t i = 0; i < count; ++i) {
      const float logit = logits[first + i];
      const TokenId id = static_cast<TokenId>(first + i);
      const double scaled = logit / temperature;
      if (scaled + GumbelBound(words[i]) < winning_score) continue;
      if (RankedLogits::RankOf(logit, id) < lowest_kept) continue;
      const double score = scaled + Gumbel(words[i]);
      if (score > winning_score || (score == winning_score && id < winner)) {
        winning_score = score;
        winner = id;
      }
    }
  }
  return winner;
}

}  // namespace aft
