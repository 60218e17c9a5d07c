#ifndef AFT_TESTS_PARITY_GOLDENS_H_
#define AFT_TESTS_PARITY_GOLDENS_H_

#include <cstdint>
#include <limits>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "gtest/gtest.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/mixers/tables.h"

namespace aft {

// tests/parity/goldens/<name>.safetensors; README.md beside it lists names and contents. The test
// ends when it cannot be read. REQUIRES: the current directory is the repository's root.
SafetensorsFile ReadGoldens(const std::string& name);

// |got - want| <= absolute + relative |want| everywhere, and
// sqrt(mean((got - want)^2) / mean(want^2)) <= rms.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
  double rms = std::numeric_limits<double>::infinity();
};
// A mixer against float64 on the same fp32 inputs.
inline constexpr Tolerance kCore = {0, 1e-5, 1e-6};
// A layer with its projections: torch.testing's defaults.
inline constexpr Tolerance kLayer = {1.3e-6, 1e-5};
// Keys and values stored in bf16.
inline constexpr Tolerance kBf16 = {1.6e-2, 1e-2};

// Also fails on shapes that differ and on values that are not finite.
testing::AssertionResult Close(const at::Tensor& got, const at::Tensor& want,
                               const Tolerance& tolerance);

// One case of operators.safetensors.
struct OperatorCase {
  std::string name;
  MixerConfig config;
  int64_t grid_width = 0;

  friend void PrintTo(const OperatorCase& golden, std::ostream* out) { *out << golden.name; }
};

// All of them, by name.
std::vector<OperatorCase> OperatorCases(const SafetensorsFile& goldens);

// The tensors "<prefix><key>" by key.
MixerTables Below(const TensorMap& tensors, const std::string& prefix);

}  // namespace aft

#endif  // AFT_TESTS_PARITY_GOLDENS_H_
