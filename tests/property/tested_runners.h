#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "model/api/load.h"
#include "model/network/check_tensors.h"
#include "tests/property/network_reference.h"
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
  bool slow = false;       // tested with what is its own: no threads, and see TestedCases
};

// Defined by cpu_runners_tested.cc or by tests/gpu_model.
const RunnerDevice& TestedRunners();

// The decoders that an engine is tested over: all, or on a slow device one of each that an engine
// can tell apart, a state of constant size, one that grows, and one that generated tokens make
// otherwise. What runners do with their states, their own tests ask of every kind.
inline std::vector<NetworkCase> EngineCases() {
  std::vector<NetworkCase> cases = DecoderCases();
  if (TestedRunners().slow) {
    std::erase_if(cases, [](const NetworkCase& one) {
      return one.name != "aft_local" && one.name != "dot_product";
    });
  }
  cases.push_back(FullDecodeCase());
  return cases;
}

// All cases, or on a slow device those that are more to a runner than a form of a mixer: all forms
// are in the mixers' suite, on every device.
inline std::vector<NetworkCase> TestedCases(std::vector<NetworkCase> cases) {
  if (TestedRunners().slow) std::erase_if(cases, [](const NetworkCase& one) { return one.form; });
  return cases;
}

}  // namespace aft
