#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "model/api/sampling_params.h"

namespace aft {

// The rules of a sequence, and beside them those that ban further tokens, in the order of ids, each
// once: what a device applies where it knows rules alone. Returns how many there are in `merged`.
// `rules`: null: none. `banned`: in the order of ids, each once.
// REQUIRES: merged has room for kMaxLogitRules, which both together do not exceed.
int32_t RulesWithBans(const LogitRules* rules, absl::Span<const TokenId> banned, LogitRule* merged);

}  // namespace aft
