#ifndef AFT_TESTS_CUDA_AFT_STEP_HARNESS_H_
#define AFT_TESTS_CUDA_AFT_STEP_HARNESS_H_

#include <cstdint>
#include <vector>

#include "model/kernels/cuda/aft/aft.h"
#include "tests/cuda/aft_layer.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/device_array.h"
#include "tests/property/random_inputs.h"
#include "tests/support/same_bits.h"

namespace aft::aft_step_test {

using aft_layer::Layer;
using aft_layer::Storage;

// One token of one sequence.
struct Row {
  int32_t slot = 0;
  int64_t position = 0;
  std::vector<float> qkv;  // [3 * hid]
  int32_t age = -1;        // look-ahead
};

// A layer whose tokens come one by one.
class Runner : public aft_layer::LayerStates {
 public:
  Runner(TestRandom& random, const Layer& layer, int64_t slots, Storage storage = {},
         int64_t lookahead_rows = 0);

  // One batch: y [rows, hid].
  std::vector<float> Step(const std::vector<Row>& rows);
  // The same on the CPU's states; the result is not looked at.
  void StepOnCpu(const std::vector<Row>& rows);

  std::vector<float> Sums(int32_t slot) const;
  void SetStates(const std::vector<float>& states) { states_.Set(states); }
  const kernels::cuda::AftModel& model() const { return model_; }

 private:
  const int64_t lookahead_rows_;
  const int64_t lookahead_stride_;
  const DeviceArray<float> sums_;
};

// Row t of a [T, width] matrix.
std::vector<float> RowOf(const std::vector<float>& matrix, int64_t width, int64_t t);

// Expects y to be finite and as near to float64 as aft-operators.md 7 asks of this type.
void ExpectNear(const std::vector<float>& y, const std::vector<double>& reference, Number type,
                double tolerance = 1e-5);

}  // namespace aft::aft_step_test

#endif  // AFT_TESTS_CUDA_AFT_STEP_HARNESS_H_
