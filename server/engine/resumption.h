#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/api/model_runner.h"
#include "model/api/sampling_params.h"
#include "server/engine/output_builder.h"
#include "server/engine/request.h"

namespace aft::server {

// How a stream begins: a new one, or one that goes on with the output that its request brings.
struct Resumption {
  // Of a new stream, or of one with all of its output to read again.
  explicit Resumption(const GenerationRequest& request);

  int64_t unread;  // tokens that the model has to read
  Usage usage;     // what is known of it
  // What its text has of each token before the first one that it samples, in the order of ids; null
  // without penalties, which nothing else goes by.
  std::shared_ptr<const std::vector<TokenUse>> had{};
  std::unique_ptr<Outcome> ended{};  // how the output has ended; null: there is a token to sample
};

// That the request's `previous`, if it has one, is a state that `model` can continue from. Errors
// as CheckStateOf, with the field in front. To be called before anything is computed from its
// numbers.
absl::Status CheckPrevious(const TurnRequest& request, const ModelInfo& info,
                           absl::string_view model);

// Whether the state is one of the request's text and output, from which there is a token to read.
bool IsWithin(const SequenceState& state, const GenerationRequest& request, const ModelInfo& info);

// Replays the request's output, and moves the request on to its start: the start becomes its
// `previous`, and its prompt what is left to read. A start behind which the model would have
// nothing to consume is not used. INVALID_ARGUMENT: OutputBuilder::Replay. REQUIRES: the request
// has been checked, `output` is as it asks, and IsWithin holds for its start.
absl::StatusOr<Resumption> Replay(GenerationRequest& request, OutputBuilder& output);

}  // namespace aft::server
