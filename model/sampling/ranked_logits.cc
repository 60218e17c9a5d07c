#include "model/sampling/ranked_logits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>

#include "base/check.h"
#include "model/kernels/logits.h"

namespace aft {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

RankedLogits::Rank RankedLogits::RankOf(float logit, TokenId id) {
  // As integers these bits have the order of the floats: all bits of a negative float are inverted,
  // in other floats the highest bit is set.
  const uint32_t bits = std::bit_cast<uint32_t>(logit);
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return Rank{ordered} << 32 | ~static_cast<uint32_t>(id);
}

float RankedLogits::LogitOf(Rank rank) {
  const uint32_t ordered = static_cast<uint32_t>(rank >> 32);
  return std::bit_cast<float>((ordered >> 31) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}

TokenId RankedLogits::IdOf(Rank rank) { return static_cast<TokenId>(~static_cast<uint32_t>(rank)); }

float RankedLogits::Finite(float logit) {
  if (std::isnan(logit)) return kNegativeInfinity;
  return std::min(logit, std::numeric_limits<float>::max()) + 0.0F;  // + 0 turns -0 into 0
}

absl::Status RankedLogits::Assign(const float* logits, int64_t vocab_size) {
  AFT_CHECK(vocab_size >= 1 && vocab_size <= std::numeric_limits<TokenId>::max());
  values_.resize(static_cast<size_t>(vocab_size));
  const float highest = kernels::FiniteLogits(logits, vocab_size, values_.data());
  if (highest == kNegativeInfinity) {
    return absl::InternalError("the model's logits are all NaN or -inf");
  }
  const int64_t best = kernels::NextAtLeast(values_.data(), 0, vocab_size, highest);
  best_ = RankOf(highest, static_cast<TokenId>(best));
  return absl::OkStatus();
}

void RankedLogits::Report(int32_t top, SampledToken* token) {
  const double highest = LogitOf(best_);
  double total = 0.0;
  for (const float logit : values_) total += std::exp(logit - highest);
  const double log_total = highest + std::log(total);
  const auto logprob_of = [&](float logit) { return static_cast<float>(logit - log_total); };
  token->logprob = logprob_of(values_[static_cast<size_t>(token->id)]);
  token->top.clear();
  if (top == 0) return;

  ranks_.clear();
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i] == kNegativeInfinity) continue;
    ranks_.push_back(RankOf(values_[i], static_cast<TokenId>(i)));
  }
  const size_t count = std::min(ranks_.size(), static_cast<size_t>(top));
  std::partial_sort(ranks_.begin(), ranks_.begin() + static_cast<std::ptrdiff_t>(count),
                    ranks_.end(), std::greater<>());
  token->top.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    token->top.push_back({IdOf(ranks_[i]), logprob_of(LogitOf(ranks_[i]))});
  }
}

}  // namespace aft
