#include "model/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>

#include "base/check.h"
#include "model/sampling/philox.h"

namespace aft {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

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

Sampler::Rank Sampler::RankOf(float logit, TokenId id) {
  // The bits of floats compare as integers do once negative ones are inverted, others offset.
  const uint32_t bits = std::bit_cast<uint32_t>(logit);
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return Rank{ordered} << 32 | ~static_cast<uint32_t>(id);
}

float Sampler::LogitOf(Rank rank) {
  const uint32_t ordered = static_cast<uint32_t>(rank >> 32);
  return std::bit_cast<float>((ordered >> 31) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}

TokenId Sampler::IdOf(Rank rank) { return static_cast<TokenId>(~static_cast<uint32_t>(rank)); }

absl::Status Sampler::Sample(const float* logits, int64_t vocab_size, const SamplingParams& params,
                             uint64_t output_index, SampledToken* token) {
  AFT_CHECK(vocab_size >= 1 && vocab_size <= std::numeric_limits<TokenId>::max());
  token->logprob = 0.0F;
  token->top.clear();
  const Rank best = Clean(logits, vocab_size);
  if (LogitOf(best) == kNegativeInfinity) {
    token->id = 0;
    return absl::InternalError("the model's logits are all NaN or -inf");
  }
  if (params.temperature > 0.0F) {
    token->id = Draw(params, output_index, best, LowestKept(params, best));
  } else {
    token->id = IdOf(best);
  }
  if (params.top_logprobs >= 0) ReportLogprobs(params.top_logprobs, best, token);
  return absl::OkStatus();
}

// Fills logits_ and returns the rank of the best token.
Sampler::Rank Sampler::Clean(const float* logits, int64_t vocab_size) {
  logits_.resize(static_cast<size_t>(vocab_size));
  float highest = kNegativeInfinity;
  for (size_t i = 0; i < logits_.size(); ++i) {
    const float logit = std::isnan(logits[i]) ? kNegativeInfinity : logits[i];
    // + 0 turns -0 into 0: they are equal, and must have equal ranks.
    logits_[i] = std::min(logit, std::numeric_limits<float>::max()) + 0.0F;
    highest = std::max(highest, logits_[i]);
  }
  const auto first = std::find(logits_.begin(), logits_.end(), highest);
  return RankOf(highest, static_cast<TokenId>(first - logits_.begin()));
}

// The tokens that top-k and top-p keep are those of at least the returned rank.
Sampler::Rank Sampler::LowestKept(const SamplingParams& params, Rank best) {
  const bool limit_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits_.size();
  const bool limit_p = params.top_p < 1.0F;
  if (!limit_k && !limit_p) return 0;

  ranks_.resize(logits_.size());
  for (size_t i = 0; i < logits_.size(); ++i) {
    ranks_[i] = RankOf(logits_[i], static_cast<TokenId>(i));
  }
  if (limit_k) {
    const auto last_kept = ranks_.begin() + (params.top_k - 1);
    std::nth_element(ranks_.begin(), last_kept, ranks_.end(), std::greater<>());
    if (!limit_p) return *last_kept;
    ranks_.resize(static_cast<size_t>(params.top_k));
  }

  const double highest = LogitOf(best);
  candidates_.resize(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    candidates_[i] = {ranks_[i],
                      std::exp((LogitOf(ranks_[i]) - highest) / double{params.temperature})};
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

TokenId Sampler::Draw(const SamplingParams& params, uint64_t output_index, Rank best,
                      Rank lowest_kept) const {
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(params.seed),
                                       static_cast<uint32_t>(params.seed >> 32)};
  const auto words_of = [&](size_t id) {
    return Philox4x32({static_cast<uint32_t>(output_index), params.sequence,
                       static_cast<uint32_t>(id / 4), static_cast<uint32_t>(output_index >> 32)},
                      key);
  };
  const double temperature = params.temperature;
  // The best token goes first: the score that it sets rules most others out without logarithms.
  TokenId winner = IdOf(best);
  const size_t best_id = static_cast<size_t>(winner);
  double winning_score = LogitOf(best) / temperature + Gumbel(words_of(best_id)[best_id % 4]);
  for (size_t first = 0; first < logits_.size(); first += 4) {
    const std::array<uint32_t, 4> words = words_of(first);
    const size_t count = std::min<size_t>(4, logits_.size() - first);
    for (size_t i = 0; i < count; ++i) {
      const float logit = logits_[first + i];
      const TokenId id = static_cast<TokenId>(first + i);
      const double scaled = logit / temperature;
      if (scaled + GumbelBound(words[i]) < winning_score) continue;
      if (RankOf(logit, id) < lowest_kept) continue;
      const double score = scaled + Gumbel(words[i]);
      if (score > winning_score || (score == winning_score && id < winner)) {
        winning_score = score;
        winner = id;
      }
    }
  }
  return winner;
}

void Sampler::ReportLogprobs(int32_t top_logprobs, Rank best, SampledToken* token) {
  const double highest = LogitOf(best);
  double total = 0.0;
  for (const float logit : logits_) total += std::exp(logit - highest);
  const double log_total = highest + std::log(total);
  const auto logprob_of = [&](float logit) { return static_cast<float>(logit - log_total); };
  token->logprob = logprob_of(logits_[static_cast<size_t>(token->id)]);
  if (top_logprobs == 0) return;

  ranks_.clear();
  for (size_t i = 0; i < logits_.size(); ++i) {
    if (logits_[i] == kNegativeInfinity) continue;
    ranks_.push_back(RankOf(logits_[i], static_cast<TokenId>(i)));
  }
  const size_t count = std::min(ranks_.size(), static_cast<size_t>(top_logprobs));
  std::partial_sort(ranks_.begin(), ranks_.begin() + static_cast<std::ptrdiff_t>(count),
                    ranks_.end(), std::greater<>());
  token->top.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    token->top.push_back({IdOf(ranks_[i]), logprob_of(LogitOf(ranks_[i]))});
  }
}

}  // namespace aft
