#include "model/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>

#include "base/status_macros.h"
#include "model/kernels/logits.h"
#include "model/sampling/logit_rules.h"
#include "model/sampling/philox.h"

namespace aft {
namespace {

double Gumbel(uint32_t word) {
  const double uniform = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -std::log(-std::log(uniform));
}

}  // namespace

absl::Status Sampler::Sample(const float* logits, int64_t vocab_size, const SamplingParams& params,
                             const TokenCount* counts, uint64_t output_index, SampledToken* token,
                             absl::Span<const TokenId> banned) {
  token->id = 0;
  token->logprob = 0.0F;
  token->top.clear();
  const bool adjust = params.rules != nullptr || !banned.empty() ||
                      (counts != nullptr && PenaltiesOf(params).any());
  if (adjust) {
    adjusted_.resize(static_cast<size_t>(vocab_size));
    Adjust(logits, params, counts, output_index, banned);
  }
  AFT_RETURN_IF_ERROR(logits_.Assign(adjust ? adjusted_.data() : logits, vocab_size));
  if (params.temperature > 0.0F) {
    token->id = Draw(params, output_index, LowestKept(params));
  } else {
    token->id = RankedLogits::IdOf(logits_.best());
  }
  if (params.top_logprobs < 0) return absl::OkStatus();
  if (adjust) AFT_RETURN_IF_ERROR(logits_.Assign(logits, vocab_size));
  logits_.Report(params.top_logprobs, token);
  return absl::OkStatus();
}

void Sampler::Adjust(const float* logits, const SamplingParams& params, const TokenCount* counts,
                     uint64_t output_index, absl::Span<const TokenId> banned) {
  if (params.rules == nullptr) {
    for (size_t i = 0; i < adjusted_.size(); ++i) adjusted_[i] = RankedLogits::Finite(logits[i]);
  } else {
    const bool early = output_index < params.ends_from;
    size_t next = 0;
    const auto leave_until = [&](size_t end) {
      for (; next < end; ++next) {
        adjusted_[next] =
            params.rules->only_these ? kBannedBias : RankedLogits::Finite(logits[next]);
      }
    };
    for (const LogitRule& rule : params.rules->rules) {
      leave_until(static_cast<size_t>(rule.id));
      adjusted_[next] = Ruled(RankedLogits::Finite(logits[next]), rule, early);
      ++next;
    }
    leave_until(adjusted_.size());
  }
  for (const TokenId id : banned) adjusted_[static_cast<size_t>(id)] = kBannedBias;
  const Penalties penalties = PenaltiesOf(params);
  if (counts == nullptr || !penalties.any()) return;
  for (size_t i = 0; i < adjusted_.size(); ++i) {
    adjusted_[i] = Penalised(adjusted_[i], counts[i], penalties, output_index);
  }
}

absl::Status Sampler::Score(const float* logits, int64_t vocab_size, TokenId id, int32_t top,
                            SampledToken* token) {
  AFT_RETURN_IF_ERROR(logits_.Assign(logits, vocab_size));
  token->id = id;
  logits_.Report(top, token);
  return absl::OkStatus();
}

// Returns the lowest rank that min-p, top-k and top-p keep; tokens of at least this rank are kept.
Sampler::Rank Sampler::LowestKept(const SamplingParams& params) {
  const std::vector<float>& logits = logits_.values();
  const bool limit_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
  const bool limit_p = params.top_p < 1.0F;
  const bool limit_min_p = params.min_p > 0.0F;
  if (!limit_k && !limit_p && !limit_min_p) return 0;

  const double highest = RankedLogits::LogitOf(logits_.best());
  const double temperature = params.temperature_last ? 1.0 : params.temperature;
  const double lowest = limit_min_p ? highest + temperature * std::log(double{params.min_p})
                                    : -std::numeric_limits<double>::infinity();
  // With many tokens, only those above the best k so far are looked at.
  const bool k_last = limit_k && limit_p && params.temperature_last;
  const size_t k = limit_k && !k_last ? static_cast<size_t>(params.top_k) : logits.size();
  Rank least = 0;
  const auto keep_best = [&] {
    if (ranks_.size() <= k) return;
    const auto end = ranks_.begin() + static_cast<std::ptrdiff_t>(k);
    std::nth_element(ranks_.begin(), end, ranks_.end(), std::greater<>());
    ranks_.erase(end, ranks_.end());
    least = *std::min_element(ranks_.begin(), ranks_.end());
  };
  ranks_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < lowest) continue;
    const Rank rank = RankedLogits::RankOf(logits[i], static_cast<TokenId>(i));
    if (rank < least) continue;
    ranks_.push_back(rank);
    if (ranks_.size() == 2 * k) keep_best();
  }
  keep_best();
  if (!limit_p) return *std::min_element(ranks_.begin(), ranks_.end());

  candidates_.resize(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const double logit = RankedLogits::LogitOf(ranks_[i]);
    candidates_[i] = {ranks_[i], std::exp((logit - highest) / temperature)};
  }
  const Rank lowest_of_p = LowestOfTopP(params.top_p);
  if (!k_last || ranks_.size() <= static_cast<size_t>(params.top_k)) return lowest_of_p;
  const auto kth = ranks_.begin() + (params.top_k - 1);
  std::nth_element(ranks_.begin(), kth, ranks_.end(), std::greater<>());
  return std::max(lowest_of_p, *kth);
}

// The rank of the last candidate, from the best down, that is needed to reach `top_p` of all
// weight. It is found by bisection by weight. Each round moves the better half to the front and
// continues with one side only, so the cost is linear instead of that of sorting.
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

TokenId Sampler::Draw(const SamplingParams& params, uint64_t output_index, Rank lowest_kept) {
  const std::vector<float>& logits = logits_.values();
  const double temperature = params.temperature;
  double winning_score = -std::numeric_limits<double>::infinity();
  TokenId winner = kNoToken;
  const auto consider = [&](size_t index) {
    const TokenId id = static_cast<TokenId>(index);
    if (RankedLogits::RankOf(logits[index], id) < lowest_kept) return;
    const std::array<uint32_t, 4> words =
        Philox4x32({static_cast<uint32_t>(output_index), 0U, static_cast<uint32_t>(index / 4),
                    static_cast<uint32_t>(output_index >> 32)},
                   {static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32)});
    const double score = logits[index] / temperature + Gumbel(words[index % 4]);
    if (score > winning_score || (score == winning_score && id < winner)) {
      winning_score = score;
      winner = id;
    }
  };
  const float highest = RankedLogits::LogitOf(logits_.best());
  bounds_.resize(logits.size());
  const float largest =
      kernels::GumbelBounds({.seed = params.seed,
                             .output_index = output_index,
                             .temperature = params.temperature,
                             .highest = highest,
                             .lowest = lowest_kept == 0 ? std::numeric_limits<float>::lowest()
                                                        : RankedLogits::LogitOf(lowest_kept)},
                            logits.data(), static_cast<int64_t>(logits.size()), bounds_.data());
  // These two come first, because their score rules out most others. One of them is always kept.
  consider(static_cast<size_t>(RankedLogits::IdOf(logits_.best())));
  const auto count = static_cast<int64_t>(bounds_.size());
  consider(static_cast<size_t>(kernels::NextAtLeast(bounds_.data(), 0, count, largest)));
  // Scores that differ by less than their rounding are equal, and the lower id wins.
  const double offset = highest / temperature;
  const double slack = 1e-3 + std::abs(offset) * 0x1p-48;
  for (int64_t i = 0;; ++i) {
    const double least =
        std::max(winning_score - offset - slack, double{std::numeric_limits<float>::lowest()});
    i = kernels::NextAtLeast(bounds_.data(), i, count, static_cast<float>(least));
    if (i == count) return winner;
    consider(static_cast<size_t>(i));
  }
}

}  // namespace aft
