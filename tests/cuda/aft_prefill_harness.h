#ifndef AFT_TESTS_CUDA_AFT_PREFILL_HARNESS_H_
#define AFT_TESTS_CUDA_AFT_PREFILL_HARNESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/kernels/aft.h"
#include "model/kernels/cuda/aft.h"
#include "tests/cuda/device_array.h"
#include "tests/property/random_inputs.h"

namespace aft::aft_prefill_test {

// An AFT layer whose biases are N(0, spread^2).
struct Layer {
  int64_t hid = 64;
  int64_t window = 0;
  kernels::AftRing ring = kernels::AftRing::kFp32;
  int64_t prefix_block = 0;
  int64_t bias_rows = 1;
  double spread = 1.0;
  bool causal = true;

  int64_t columns() const { return causal || window == 0 ? window : 2 * window - 1; }
  kernels::AftStateLayout layout() const { return {hid, window, prefix_block, ring}; }
  std::string Name() const;
};

struct Storage {
  kernels::cuda::Number in = kernels::cuda::Number::kFp32;
  kernels::cuda::Number out = kernels::cuda::Number::kFp32;
  bool padded = false;  // gaps between the rows of matrices
};
inline constexpr Storage kBf16 = {kernels::cuda::Number::kBf16, kernels::cuda::Number::kBf16};

// Consecutive tokens of one sequence.
struct Chunk {
  int32_t slot = 0;
  int64_t position = 0;
  std::vector<float> qkv;  // [tokens, 3 * hid]
};

// A layer with drawn biases, a pool of slots on the device and one for the CPU's kernel. All memory
// starts as NaN, so that a read of what was never written shows.
class Runner {
 public:
  Runner(TestRandom& random, const Layer& layer, int64_t slots = 1, Storage storage = {});
  // The same layer with its biases, and fresh states.
  Runner Copy() const { return {layer_, slots_, storage_, table_}; }

  // [tokens, 3 * hid], keys of the named set, rounded to the storage.
  std::vector<float> Input(TestRandom& random, const std::string& keys, int64_t tokens) const;
  // y [tokens, hid] of one sequence in float64.
  std::vector<double> Reference(const std::vector<float>& qkv,
                                const std::vector<float>& mask = {}) const;

  // One batch by AftPrefill: y of each chunk.
  std::vector<std::vector<float>> Prefill(const std::vector<Chunk>& chunks);
  // One sequence in slot 0, cut into chunks of these lengths, of which the last repeats.
  std::vector<float> PrefillCut(const std::vector<float>& qkv, const std::vector<int64_t>& lengths);
  // One batch by the CPU's kernel on its own states.
  std::vector<std::vector<float>> OnCpu(const std::vector<Chunk>& chunks);
  // Whole texts by AftEncode, with masks or none.
  std::vector<std::vector<float>> Encode(const std::vector<std::vector<float>>& texts,
                                         const std::vector<std::vector<float>>& masks = {}) const;

  // Expects the states in `slots` to be as those of the CPU: rings and maxima bit by bit, sums but
  // for rounding.
  void ExpectStatesOfCpu(const std::vector<int32_t>& slots) const;
  // Expects y to be finite, within the values, and as near to float64 as aft-operators.md 7 asks.
  void ExpectNear(const std::vector<float>& y, const std::vector<float>& qkv,
                  const std::vector<float>& mask = {}) const;

  std::vector<float> State(int32_t slot) const;
  std::vector<float> states() const { return states_.Get(); }
  void CopyStatesToCpu() { cpu_states_ = states_.Get(); }
  void CopyStatesFromCpu() { states_.Set(cpu_states_); }

 private:
  Runner(const Layer& layer, int64_t slots, Storage storage, std::vector<float> table);

  kernels::AftParams params() const {
    return {layer_.hid, &cpu_bias_, layer_.prefix_block, layer_.ring};
  }

  const Layer layer_;
  const int64_t slots_;
  const Storage storage_;
  const std::vector<float> table_;  // [bias_rows, columns], earliest key first
  const kernels::AftBias cpu_bias_;
  const DeviceArray<float> bias_;
  const int64_t slot_stride_;
  DeviceArray<float> states_;
  std::vector<float> cpu_states_;
  kernels::cuda::AftModel model_;
};

// Tokens [begin, end) of a [T, width] matrix.
std::vector<float> Part(const std::vector<float>& matrix, int64_t width, int64_t begin,
                        int64_t end);
bool SameBits(const std::vector<float>& a, const std::vector<float>& b);
// The large matrix, by hand.
bool Full();

}  // namespace aft::aft_prefill_test

#endif  // AFT_TESTS_CUDA_AFT_PREFILL_HARNESS_H_
