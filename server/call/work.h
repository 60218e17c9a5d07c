#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/engine/request.h"
#include "server/registry/served_model.h"

namespace aft::server {

// Several prompts, and how many answers each is to have: the i-th of them with the seed + i.
struct Generations {
  std::vector<GenerationRequest> prompts;
  uint32_t answers = 1;
};

// What a request asks an engine for: a generation (of several answers to one prompt), generations,
// or texts to score or to encode. Without one: the exchange has the answer already.
using Work = std::variant<std::monostate, GenerationRequest, Generations,
                          std::vector<ScoringRequest>, std::vector<EncodingRequest>>;

// Calls `set` with each request of the work that may follow another text.
void ForEachTurn(Work& work, absl::FunctionRef<void(TurnRequest&)> set);

// Hands the work to an engine of `model`. `header`: of each of its requests, beside the service
// class. `proxy_salt`: what a trusted proxy adds to the salt of the prefix cache. `tokens` or
// `vectors` is called for a sink of each sequence. Errors as those of the engines.
absl::StatusOr<RequestHandle> AskEngine(
    Work work, const ServedModel& model, RequestHeader header, const std::string& proxy_salt,
    absl::FunctionRef<std::vector<std::shared_ptr<TokenSink>>()> tokens,
    absl::FunctionRef<std::vector<std::shared_ptr<VectorSink>>()> vectors);

}  // namespace aft::server
