#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/api/model_runner.h"

namespace aft::server {

// For a prompt or text of `tokens`, so that it cannot harm its neighbours in the batch: a step that
// the runner refuses ends all of its requests. The edge checks too, with the field's name.
// `max_tokens`: 0 is unlimited.
absl::Status CheckTokens(const std::vector<TokenId>& tokens, int64_t vocab_size,
                         int64_t max_tokens);

}  // namespace aft::server
