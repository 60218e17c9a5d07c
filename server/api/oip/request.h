#pragma once

#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"
#include "server/api/oip/inference.h"
#include "server/config/config.h"
#include "server/registry/model_registry.h"

namespace aft::server::oip {

// Decodes `message`, whose model is `model`. INVALID_ARGUMENT begins with the name of the wrong
// tensor or parameter.
absl::StatusOr<Inference> DecodeInference(const inference::ModelInferRequest& message,
                                          const LimitsConfig& limits, const ServedModel& model,
                                          Reply reply);

}  // namespace aft::server::oip
