#include "tests/property/tested_runners.h"

namespace aft {

const RunnerDevice& TestedRunners() {
  static const RunnerDevice device = {
      [](const LoadOptions& options, const NetworkConfig& /*config*/,
         const TensorMap& /*tensors*/) { return LoadModel(options); },
      /*same_bits=*/true, tolerance::kLogProbability, tolerance::kVectors};
  return device;
}

}  // namespace aft
