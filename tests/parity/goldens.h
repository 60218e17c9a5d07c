#pragma once

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "gtest/gtest.h"
#include "model/checkpoint/safetensors.h"
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

}  // namespace aft
