#ifndef AFT_TESTS_CUDA_AFT_STEP_HARNESS_H_
#define AFT_TESTS_CUDA_AFT_STEP_HARNESS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/kernels/aft.h"
#include "model/kernels/cuda/aft.h"
#include "tests/cuda/device_array.h"
#include "tests/property/random_inputs.h"

namespace aft::aft_step_test {

// A causal AFT layer whose biases are N(0, spread^2).
struct Layer {
  int64_t hid = 64;
  int64_t window = 0;
  kernels::AftRing ring = kernels::AftRing::kFp32;
  int64_t prefix_block = 0;
  int64_t bias_rows = 1;
  double spread = 1.0;

  kernels::AftStateLayout layout() const { return {hid, window, prefix_block, ring}; }
  std::string Name() const;
};

struct Storage {
  kernels::cuda::Number in = kernels::cuda::Number::kFp32;
  kernels::cuda::Number out = kernels::cuda::Number::kFp32;
  bool padded = false;  // gaps between the rows of matrices
};

// One token of one sequence.
struct Row {
  int32_t slot = 0;
  int64_t position = 0;
  std::vector<float> qkv;  // [3 * hid]
  int32_t age = -1;        // look-ahead
};

// A layer with drawn biases, a pool of slots on the device and one for the CPU's kernel. All memory
// starts as NaN, so that a read of what was never written shows.
class Runner {
 public:
  Runner(TestRandom& random, const Layer& layer, int64_t slots, Storage storage = {},
         int64_t lookahead_rows = 0);

  // [tokens, 3 * hid], keys of the named set, rounded to the storage.
  std::vector<float> Tokens(TestRandom& random, const std::string& keys, int64_t tokens) const;
  // y [tokens, hid] of one sequence in float64.
  std::vector<double> Reference(const std::vector<float>& tokens) const;

  // One batch: y [rows, hid].
  std::vector<float> Step(const std::vector<Row>& rows);
  // The same on the CPU's states; the result is not looked at.
  void StepOnCpu(const std::vector<Row>& rows);

  // Expects the states in `slots` to be as those of the CPU: rings and maxima bit by bit, sums but
  // for rounding.
  void ExpectStatesOfCpu(const std::vector<int32_t>& slots) const;

  int64_t slots() const { return slots_; }
  std::vector<float> State(int32_t slot) const;
  std::vector<float> Sums(int32_t slot) const;
  void SetStates(const std::vector<float>& states) { states_.Set(states); }
  std::vector<float> States() const { return states_.Get(); }
  const kernels::cuda::AftModel& model() const { return model_; }

 private:
  const Layer layer_;
  const int64_t slots_;
  const Storage storage_;
  const std::vector<float> band_;   // [bias_rows, window], latest key first
  const std::vector<float> table_;  // the same, earliest key first
  const kernels::AftBias cpu_bias_;
  const DeviceArray<float> bias_;
  const int64_t slot_stride_;
  DeviceArray<float> states_;
  std::vector<float> cpu_states_;
  int64_t lookahead_rows_;
  int64_t lookahead_stride_;
  std::unique_ptr<DeviceArray<float>> sums_;
  kernels::cuda::AftModel model_;
};

// Row t of a [T, width] matrix.
std::vector<float> RowOf(const std::vector<float>& matrix, int64_t width, int64_t t);

// Expects y to be finite and as near to float64 as aft-operators.md 7 asks of this type.
void ExpectNear(const std::vector<float>& y, const std::vector<double>& reference,
                kernels::cuda::Number type, double tolerance = 1e-5);

bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace aft::aft_step_test

#endif  // AFT_TESTS_CUDA_AFT_STEP_HARNESS_H_
