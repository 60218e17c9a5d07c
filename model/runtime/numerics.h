#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/api/model_runner.h"

namespace aft {

// ModelInfo::numerics of a runner whose results do not depend on the batch. It has the instruction
// set, the weight format, and a digest of the runner's results for a fixed text. The digest changes
// with everything that changes bits: the build, the libraries, instructions that are chosen at run
// time. Leaves slot 0 bound. The errors are those of Submit and Collect.
absl::StatusOr<std::string> DescribeNumerics(absl::string_view instruction_set,
                                             ModelRunner& runner);

}  // namespace aft
