#pragma once

#include <cstddef>
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

// The memory for the uses of tokens in the texts before the outputs (Resumption::had), at most. The
// engine keeps them for every generation with penalties.
size_t UsesBytes(const Work& work, int64_t vocab_size);

// Hands the work to an engine of `model`. Each of its requests gets `header`, but keeps its own
// service class. `proxy_salt` is what a trusted proxy adds to the salt of the prefix cache.
// `tokens` or `vectors` is called to make one sink for each sequence. Returns the errors of the
// engines.
absl::StatusOr<RequestHandle> AskEngine(
    Work work, const ServedModel& model, RequestHeader header, const std::string& proxy_salt,
    absl::FunctionRef<std::vector<std::shared_ptr<TokenSink>>()> tokens,
    absl::FunctionRef<std::vector<std::shared_ptr<VectorSink>>()> vectors);

}  // namespace aft::server
