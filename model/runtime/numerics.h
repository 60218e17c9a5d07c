#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/api/model_runner.h"

namespace aft {

// ModelInfo::numerics of a runner whose results depend on no batch: how it computes, and a digest
// of what it makes of a fixed text, in which everything shows that changes bits: the build, the
// libraries, instructions that were chosen at run time. Leaves slot 0 bound. Errors as Collect.
absl::StatusOr<std::string> DescribeNumerics(absl::string_view instruction_set,
                                             ModelRunner& runner);

}  // namespace aft
