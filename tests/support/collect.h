#pragma once

#include <utility>

#include "absl/status/statusor.h"
#include "model/api/model_runner.h"

namespace aft {

// ModelRunner::Collect as a value.
inline absl::StatusOr<StepOutput> Collect(ModelRunner& runner, ModelRunner::Ticket ticket) {
  StepOutput output;
  absl::Status status = runner.Collect(ticket, output);
  if (!status.ok()) return status;
  return output;
}

}  // namespace aft
