#pragma once

#include "absl/status/statusor.h"
#include "model/api/load.h"
#include "model/network/check_tensors.h"
#include "tests/support/tolerances.h"

namespace aft {

// The device on which a test program runs models, and what they promise there.
struct RunnerDevice {
  // `config` and `tensors` are those of options.checkpoint_dir.
  absl::StatusOr<LoadedModel> (*load)(const LoadOptions& options, const NetworkConfig& config,
                                      const TensorMap& tensors);
  bool same_bits;          // whatever else is in a step, and however a text is cut
  double log_probability;  // else they are as near as this, as to the formula
  Tolerance vectors;       // likewise of encoders
};

// Defined by cpu_runners_tested.cc or by tests/gpu_model.
const RunnerDevice& TestedRunners();

}  // namespace aft
