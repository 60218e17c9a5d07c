#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "server/engine/request.h"
#include "server/registry/model_registry.h"

namespace aft::server {

// Checks GenerateRequest.resume, and adds the output in it to `request`, whose prompt and options
// are already decoded. INVALID_ARGUMENT begins with the path of the field. FAILED_PRECONDITION if
// the stream belongs to another model. REQUIRES: message.has_resume().
absl::Status DecodeResume(const v1::GenerateRequest& message, const ServedModel& model,
                          GenerationRequest& request);

// Does the same for ScoreRequest.resume. The engine checks the number of scores.
absl::Status DecodeResume(const v1::ScoreRequest& message, const ServedModel& model,
                          ScoringRequest& request);

// The `numerics` that Started tells a client: those of the model, and the hash of the tuned state
// from which the text begins, because the model's fingerprint does not cover it. REQUIRES:
// request.previous is null or a tuned state.
std::string NumericsOf(const ModelInfo& info, const TurnRequest& request);

// Whether all scores equal those of a single server without interruption. `numerics`: NumericsOf
// the request.
bool IsExact(const v1::ScoreResume& resume, absl::string_view numerics);

// Whether the stream continues with exactly the tokens that it would have had without the break.
// REQUIRES: `request` is complete.
bool IsExact(const v1::Resume& resume, absl::string_view numerics, const ModelInfo& info,
             const GenerationRequest& request);

}  // namespace aft::server
