#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "model/api/sampling_params.h"
#include "server/engine/request.h"
#include "server/registry/model_registry.h"

namespace aft::server {

// What a request says of single tokens: its allowed and banned ones, biases, and with `stop`'s
// min_tokens those that would end the output; and `bad_words`, of one token each, which are never
// drawn. Null: nothing. Errors start with the field's path.
absl::StatusOr<std::shared_ptr<const LogitRules>> DecodeLogitRules(
    const v1::SamplingOptions& message, const std::vector<TokenId>& bad_words,
    const StopConditions& stop, const ServedModel& model);

}  // namespace aft::server
