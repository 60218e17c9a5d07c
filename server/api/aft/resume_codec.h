#pragma once

#include "absl/status/status.h"
#include "aft/v1/inference.pb.h"
#include "server/engine/request.h"
#include "server/registry/model_registry.h"

namespace aft::server {

// GenerateRequest.resume: checks it, and adds the output that it brings to `request`, whose prompt
// and options are decoded. INVALID_ARGUMENT starts with the path of the field; FAILED_PRECONDITION:
// the stream is of another model. REQUIRES: message.has_resume().
absl::Status DecodeResume(const v1::GenerateRequest& message, const ServedModel& model,
                          GenerationRequest& request);

// ScoreRequest.resume, likewise. How many scores there are, the engine knows.
absl::Status DecodeResume(const v1::ScoreRequest& message, const ServedModel& model,
                          ScoringRequest& request);

// Whether all scores are those of one server that was not disturbed.
bool IsExact(const v1::ScoreResume& resume, const ModelInfo& info);

// Whether the stream goes on with the very tokens that it would have had where it broke off.
// REQUIRES: `request` is complete.
bool IsExact(const v1::Resume& resume, const ModelInfo& info, const GenerationRequest& request);

}  // namespace aft::server
