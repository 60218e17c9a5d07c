#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/api/sampling_params.h"  // TokenId

namespace aft {

// The rules that encoder_runner.h sets for the texts of one call, the same for every device.
struct TextLimits {
  int64_t max_batch_rows = 0;
  int64_t max_batch_tokens = 0;
  int64_t vocab_size = 0;
  int64_t max_seq_len = 0;  // 0: unlimited

  // The longest text that a call can hold.
  int64_t longest() const {
    return max_seq_len > 0 && max_seq_len < max_batch_tokens ? max_seq_len : max_batch_tokens;
  }
};

// INVALID_ARGUMENT names the first text that breaks a rule, and the rule.
absl::Status CheckTexts(const TextLimits& limits, const std::vector<std::vector<TokenId>>& texts);

}  // namespace aft
