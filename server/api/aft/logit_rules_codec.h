#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "model/api/sampling_params.h"
#include "server/engine/request.h"
#include "server/registry/model_registry.h"

namespace aft::server {

inline constexpr absl::string_view kRwkvPreset = "rwkv";  // SamplingOptions.preset

// Returns the rules of a request about single tokens: allowed tokens, banned tokens and biases.
// `bad_words` has words of one token each, which are banned too. With min_tokens in `stop`, tokens
// that would end the output too early are included. The preset "rwkv" adds rules for the tokens
// that it does not count. Null if there are no rules. Errors begin with the field's path.
absl::StatusOr<std::shared_ptr<const LogitRules>> DecodeLogitRules(
    const v1::SamplingOptions& message, const std::vector<TokenId>& bad_words,
    const StopConditions& stop, const ServedModel& model);

}  // namespace aft::server
