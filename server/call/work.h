#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "model/api/model_runner.h"
#include "server/engine/request.h"
#include "server/registry/served_model.h"

namespace aft::server {

// Several prompts, and the number of answers to each. Answer i has the seed + i.
struct Generations {
  std::vector<GenerationRequest> prompts;
  uint32_t answers = 1;
};

// The work of an engine for one request: a generation (with one or more answers to one prompt),
// several generations, or texts to score or to encode. With monostate, the exchange already has the
// answer.
using Work = std::variant<std::monostate, GenerationRequest, Generations,
                          std::vector<ScoringRequest>, std::vector<EncodingRequest>>;

// Calls `set` for each request in the work that can continue another text.
void ForEachTurn(Work& work, absl::FunctionRef<void(TurnRequest&)> set);

// The most memory that the engine needs for the work, in addition to the work itself. For each
// generation with penalties it keeps the uses of tokens before the output (Resumption::had) and the
// ids of the output; for a text that begins from a tuned state, a copy of the text
// (PrefixRead::marked). `sequences` is the number of answers to a single generation.
size_t EngineBytes(const Work& work, uint32_t sequences, const ModelInfo& info);

// Hands the work to an engine of `model`. Each of its requests gets `header`, but keeps its own
// service class. `proxy_salt` is what a trusted proxy adds to the salt of the prefix cache.
// `tokens` or `vectors` is called to make one sink for each sequence. Returns the errors of the
// engines.
absl::StatusOr<RequestHandle> AskEngine(
    Work work, const ServedModel& model, RequestHeader header, const std::string& proxy_salt,
    absl::FunctionRef<std::vector<std::shared_ptr<TokenSink>>()> tokens,
    absl::FunctionRef<std::vector<std::shared_ptr<VectorSink>>()> vectors);

}  // namespace aft::server
