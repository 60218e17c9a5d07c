#include "server/engine/sequence_bans.h"

#include <algorithm>
#include <utility>

namespace aft::server {

SequenceBans::SequenceBans(std::shared_ptr<const TokenSequences> sequences)
    : sequences_(std::move(sequences)) {
  if (sequences_ == nullptr) return;
  for (const std::vector<TokenId>& sequence : *sequences_) {
    longest_ = std::max(longest_, sequence.size());
  }
}

void SequenceBans::Append(TokenId token) {
  if (!any()) return;
  if (end_.size() == 2 * longest_) {
    end_.erase(end_.begin(), end_.end() - static_cast<std::ptrdiff_t>(longest_));
  }
  end_.push_back(token);
}

std::vector<TokenId> SequenceBans::Next() const {
  std::vector<TokenId> banned;
  if (!any()) return banned;
  for (const std::vector<TokenId>& sequence : *sequences_) {
    const size_t before = sequence.size() - 1;
    if (end_.size() < before) continue;
    if (std::equal(sequence.begin(), sequence.end() - 1,
                   end_.end() - static_cast<std::ptrdiff_t>(before))) {
      banned.push_back(sequence.back());
    }
  }
  std::sort(banned.begin(), banned.end());
  banned.erase(std::unique(banned.begin(), banned.end()), banned.end());
  return banned;
}

bool LeaveNoToken(const LogitRules* rules, bool early, absl::Span<const TokenId> banned,
                  int64_t vocab_size) {
  const auto count = static_cast<int64_t>(banned.size());
  if (rules == nullptr) return count == vocab_size;
  int64_t left = rules->only_these ? 0 : vocab_size - count;
  for (const LogitRule& rule : rules->rules) {
    if (std::binary_search(banned.begin(), banned.end(), rule.id)) continue;
    const bool out = rule.bias == kBannedBias || (early && rule.ends != 0);
    if (rules->only_these) {
      left += out ? 0 : 1;
    } else {
      left -= out ? 1 : 0;
    }
  }
  return left == 0;
}

}  // namespace aft::server
