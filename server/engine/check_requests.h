#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/api/model_runner.h"
#include "server/engine/request.h"

namespace aft::server {

// Checks a prompt or text, so that it cannot harm its neighbours in the batch: a step that the
// runner refuses ends all of its requests. The RPC layer checks too, and names the field.
// `max_tokens`: 0 is unlimited.
absl::Status CheckTokens(const std::vector<TokenId>& tokens, int64_t vocab_size,
                         int64_t max_tokens);

// Checks that a model can do what the request asks for. INVALID_ARGUMENT begins with the field;
// FAILED_PRECONDITION is as in CheckPrevious. `model` is the name of the model.
absl::Status CheckGeneration(const GenerationRequest& request, const ModelInfo& info,
                             const std::string& model);
absl::Status CheckScoring(const ScoringRequest& request, const ModelInfo& info,
                          const std::string& model);

}  // namespace aft::server
