#pragma once

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "gtest/gtest.h"
#include "model/checkpoint/safetensors.h"
#include "tests/support/close.h"

namespace aft {

// Reads tests/parity/goldens/<name>.safetensors. tests/parity/README.md lists names and contents.
// Ends the program on an error. REQUIRES: the current directory is the repository's root.
SafetensorsFile ReadGoldens(const std::string& name);

// Return the numbers of a tensor in row-major order. They are empty for an undefined tensor.
std::vector<float> Floats(const at::Tensor& tensor);
std::vector<double> Doubles(const at::Tensor& tensor);

// Compares as tests/support/close.h does, and also fails if the shapes differ. Types and layouts
// may differ.
testing::AssertionResult Close(const at::Tensor& got, const at::Tensor& want,
                               const Tolerance& tolerance);

}  // namespace aft
