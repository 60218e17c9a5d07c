#pragma once

#include "absl/status/status.h"
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

// Whether all scores equal those of a single server without interruption.
bool IsExact(const v1::ScoreResume& resume, const ModelInfo& info);

// Whether the stream continues with exactly the tokens that it would have had without the break.
// REQUIRES: `request` is complete.
bool IsExact(const v1::Resume& resume, const ModelInfo& info, const GenerationRequest& request);

}  // namespace aft::server
