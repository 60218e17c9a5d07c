#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "model/api/sampling_params.h"

namespace aft {

// Merges the rules of a sequence with rules that ban further tokens, for devices that apply only
// rules. The result is in the order of ids, each once. Returns the number of rules in `merged`.
// `rules`: null if the sequence has none. `banned`: in the order of ids, each once. REQUIRES:
// merged has room for kMaxLogitRules, and both together are not more.
int32_t RulesWithBans(const LogitRules* rules, absl::Span<const TokenId> banned, LogitRule* merged);

}  // namespace aft
