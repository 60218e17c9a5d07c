#include "model/sampling/row_rules.h"

#include <cstddef>

#include "base/check.h"

namespace aft {

int32_t RulesWithBans(const LogitRules* rules, absl::Span<const TokenId> banned,
                      LogitRule* merged) {
  const absl::Span<const LogitRule> own =
      rules != nullptr ? absl::MakeConstSpan(rules->rules) : absl::Span<const LogitRule>();
  const bool only_these = rules != nullptr && rules->only_these;
  int32_t count = 0;
  const auto add = [&](const LogitRule& rule) {
    AFT_CHECK(count < kMaxLogitRules);
    merged[count++] = rule;
  };
  size_t next = 0;
  for (const LogitRule& rule : own) {
    for (; next < banned.size() && banned[next] < rule.id; ++next) {
      // If the rules list the only tokens that may be drawn, the others need no ban.
      if (!only_these) add({.id = banned[next], .bias = kBannedBias});
    }
    const bool ban = next < banned.size() && banned[next] == rule.id;
    add(ban ? LogitRule{.id = rule.id, .bias = kBannedBias} : rule);
    if (ban) ++next;
  }
  for (; next < banned.size() && !only_these; ++next) {
    add({.id = banned[next], .bias = kBannedBias});
  }
  return count;
}

}  // namespace aft
