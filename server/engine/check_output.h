#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "model/api/model_runner.h"
#include "server/scheduling/step.h"

namespace aft::server {

// INTERNAL: the model has not answered every row of the step as the row asked. `width` is the width
// of a hidden vector.
absl::Status CheckOutput(const Step& step, const StepOutput& output, int64_t width);

}  // namespace aft::server
