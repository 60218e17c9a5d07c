#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "model/api/load.h"
#include "model/network/check_tensors.h"
#include "tests/property/network_reference.h"
#include "tests/support/tolerances.h"

namespace aft {

// The device on which a test program runs models, and what the models promise there.
struct RunnerDevice {
  // `config` and `tensors` are those of options.checkpoint_dir.
  absl::StatusOr<LoadedModel> (*load)(const LoadOptions& options, const NetworkConfig& config,
                                      const TensorMap& tensors);
  bool same_bits;           // whatever else is in a step, and however a text is cut
  double log_probability;   // largest difference to the formula and, without same_bits, among runs
  Tolerance vectors;        // the same for the vectors of encoders
  bool slow = false;        // fewer tests: no threads, and see TestedCases
  int64_t max_seq_len = 0;  // of a model that sets no limit; 0: unlimited
};

// Defined by cpu_runners_tested.cc or by tests/gpu_model.
const RunnerDevice& TestedRunners();

// The decoders with which an engine is tested: all, or on a slow device one of each sort that an
// engine can distinguish. These are a state of constant size, a state that grows, and a model that
// reads generated tokens differently. The tests of runners cover the states of every kind.
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

// All cases, or on a slow device all except those that are only another form of a mixer. The suite
// of the mixers tests all forms on every device.
inline std::vector<NetworkCase> TestedCases(std::vector<NetworkCase> cases) {
  if (TestedRunners().slow) std::erase_if(cases, [](const NetworkCase& one) { return one.form; });
  return cases;
}

}  // namespace aft
