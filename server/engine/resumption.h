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

// How a stream begins: as a new one, or by continuing the output that its request brings.
struct Resumption {
  // For a new stream, or for one that reads all of its output again.
  explicit Resumption(const GenerationRequest& request);

  int64_t unread;  // the number of tokens that the model has to read
  Usage usage;     // as far as it is known in advance
  // `had`: the uses of each token in the text before the output, in the order of ids. `sampled`:
  // the output that the request brings. Without penalties they are null and empty, because nothing
  // else depends on them.
  std::shared_ptr<const std::vector<TokenUse>> had{};
  std::vector<TokenId> sampled{};
  std::unique_ptr<Outcome> ended{};  // the outcome of an output that has ended; null: it continues
};

// Checks that the request's `previous`, if it has one, is a state that `model` can continue from.
// Errors as CheckStateOf, with the field in front. Must be called before anything is computed from
// the state's numbers.
absl::Status CheckPrevious(const TurnRequest& request, const ModelInfo& info,
                           absl::string_view model);

// Whether `state` holds a beginning of the request's text and output, and a token is left to read.
bool IsWithin(const SequenceState& state, const GenerationRequest& request, const ModelInfo& info);

// Replays the request's output, and moves the request to its start: `start` becomes its `previous`,
// and its prompt becomes what is left to read. A start after which the model would have nothing to
// consume is not used. INVALID_ARGUMENT as OutputBuilder::Replay. REQUIRES: the request has been
// checked, `output` is made for it, and IsWithin holds for its start.
absl::StatusOr<Resumption> Replay(GenerationRequest& request, OutputBuilder& output);

}  // namespace aft::server
