#ifndef AFT_TESTS_PARITY_GOLDENS_H_
#define AFT_TESTS_PARITY_GOLDENS_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "gtest/gtest.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/mixers/tables.h"
#include "tests/support/close.h"

namespace aft {

// tests/parity/goldens/<name>.safetensors; README.md beside it lists names and contents. The test
// ends when it cannot be read. REQUIRES: the current directory is the repository's root.
SafetensorsFile ReadGoldens(const std::string& name);

// Row-major; empty when undefined.
std::vector<float> Floats(const at::Tensor& tensor);
std::vector<double> Doubles(const at::Tensor& tensor);

// As tests/support/close.h; also fails on shapes that differ. Type and layout do not matter.
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
