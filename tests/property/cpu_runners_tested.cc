#include <utility>

#include "base/status_macros.h"
#include "tests/property/tested_runners.h"
#include "tests/support/tolerances.h"

namespace aft {

const RunnerDevice& TestedRunners() {
  static const RunnerDevice device = {
      [](const LoadOptions& options, const NetworkConfig& /*config*/,
         const TensorMap& /*tensors*/) -> absl::StatusOr<std::unique_ptr<ModelRunner>> {
        AFT_ASSIGN_OR_RETURN(LoadedModel model, LoadModel(options));
        return std::move(model.runner);
      },
      /*same_bits=*/true, tolerance::kLogProbability};
  return device;
}

}  // namespace aft
