#pragma once

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/config/config.h"
#include "server/observability/metrics.h"
#include "server/registry/model_registry.h"

namespace aft::server {

// Tokenize and Detokenize; see AnswerExchange. Pure functions. Errors begin with the field's path.
// FAILED_PRECONDITION if the model has no tokenizer.
struct TokenizeCodec {
  using Request = v1::TokenizeRequest;
  using Response = v1::TokenizeResponse;
  static constexpr Method kMethod = Method::kTokenize;
  // `special_tokens`: whether the ids have the special tokens that the tokenizer adds to a text.
  static absl::StatusOr<Response> Answer(const Request& message, const LimitsConfig& limits,
                                         const ServedModel& model, bool special_tokens = true);
};

struct DetokenizeCodec {
  using Request = v1::DetokenizeRequest;
  using Response = v1::DetokenizeResponse;
  static constexpr Method kMethod = Method::kDetokenize;
  static absl::StatusOr<Response> Answer(const Request& message, const LimitsConfig& limits,
                                         const ServedModel& model);
};

}  // namespace aft::server
