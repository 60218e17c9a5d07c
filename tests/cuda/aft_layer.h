#ifndef AFT_TESTS_CUDA_AFT_LAYER_H_
#define AFT_TESTS_CUDA_AFT_LAYER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/kernels/aft.h"
#include "model/kernels/cuda/aft/aft.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/device_matrix.h"
#include "tests/property/random_inputs.h"

// What the tests of AFT's steps, prompts and texts on CUDA have in common.
namespace aft::aft_layer {

// An AFT layer whose biases are N(0, spread^2).
struct Layer {
  int64_t hid = 64;
  int64_t window = 0;
  Number ring = Number::kFp32;
  int64_t prefix_block = 0;
  int64_t bias_rows = 1;
  double spread = 1.0;
  bool causal = true;

  int64_t columns() const { return causal || window == 0 ? window : 2 * window - 1; }
  kernels::AftStateLayout layout() const { return {hid, window, prefix_block, ring}; }
  std::string Name() const;
};

struct Storage {
  Number in = Number::kFp32;
  Number out = Number::kFp32;
  bool padded = false;  // gaps between the rows of matrices

  int64_t Stride(int64_t width) const { return padded ? (width + 15) / 8 * 8 : width; }
};
inline constexpr Storage kBf16 = {Number::kBf16, Number::kBf16};

// A layer with drawn biases, a pool of slots on the device and one for the CPU's kernel. All memory
// starts as NaN, so that a read of what was never written shows.
class LayerStates {
 public:
  LayerStates(TestRandom& random, const Layer& layer, int64_t slots, Storage storage);

  // [tokens, 3 * hid], keys of the named set, rounded to the storage.
  std::vector<float> Input(TestRandom& random, const std::string& keys, int64_t tokens) const;
  // y [tokens, hid] of one sequence in float64.
  std::vector<double> Reference(const std::vector<float>& qkv,
                                const std::vector<float>& mask = {}) const;

  // Expects the states in `slots` to be as those of the CPU: rings and maxima bit by bit, sums but
  // for rounding.
  void ExpectStatesOfCpu(const std::vector<int32_t>& slots) const;

  int64_t slots() const { return slots_; }
  std::vector<float> State(int32_t slot) const;  // and the padding behind it
  std::vector<float> states() const { return states_.Get(); }

 protected:
  LayerStates(const Layer& layer, int64_t slots, Storage storage, std::vector<float> table);

  // Consecutive tokens of one sequence by the CPU's kernel, on its own states: y.
  std::vector<float> ChunkOnCpu(int32_t slot, int64_t position, const std::vector<float>& qkv);

  DeviceMatrix In(const std::vector<float>& qkv) const {
    return {qkv, 3 * layer_.hid, storage_.in, storage_.Stride(3 * layer_.hid)};
  }
  DeviceMatrix Out(int64_t rows) const {
    return {rows, layer_.hid, storage_.out, storage_.Stride(layer_.hid)};
  }
  kernels::cuda::State DeviceStates() const { return {states_.get(), slot_stride_}; }

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

}  // namespace aft::aft_layer

#endif  // AFT_TESTS_CUDA_AFT_LAYER_H_
