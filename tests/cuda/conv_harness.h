#ifndef AFT_TESTS_CUDA_CONV_HARNESS_H_
#define AFT_TESTS_CUDA_CONV_HARNESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/kernels/cuda/conv/conv.h"
#include "tests/cuda/device_array.h"
#include "tests/property/random_inputs.h"
#include "tests/support/same_bits.h"

namespace aft::conv_test {

// An AFT-conv layer: filter entries are N(0, spread^2).
struct Layer {
  Layer(TestRandom& random, int64_t channels, int64_t heads, int64_t taps, double spread = 1.0);

  int64_t width() const { return 2 * hid + config.heads; }
  // The layer's constants, with the filter in `device_filter`.
  kernels::cuda::ConvModel Model(const DeviceArray<float>& device_filter) const;
  std::vector<float> Filter() const;  // [taps, heads]
  std::string Name() const;

  MixerConfig config;  // causal and fp32 ring at first; Redraw() after a change of `grid`
  int64_t hid;
  std::vector<double> w;  // [heads, taps] as conv.w is stored

  void Redraw(TestRandom& random);

 private:
  double spread_;
};

// Storage of inputs and outputs, and whether matrices have rows of whole 16 bytes with gaps.
struct Storage {
  Number in = Number::kFp32;
  Number out = Number::kFp32;
  bool padded = true;

  std::string Name() const;
};
extern const std::vector<Storage> kStorages;  // every pair that there are kernels for

// [tokens, width()]: keys of the named set, the rest N(0, 1); rounded to `type`.
std::vector<float> Input(TestRandom& random, const Layer& layer, const std::string& keys,
                         int64_t tokens, Number type = Number::kFp32);

// The definition in double; keys and values rounded when the layer has a bf16 ring.
std::vector<double> Reference(const Layer& layer, const std::vector<float>& packed,
                              const std::vector<float>& mask = {}, int64_t grid_width = 0);

// Expects y to be finite and as close as aft-operators.md 7 asks of this type, values being N(0,1);
// `slack` times that for filters whose entries, some hundreds, have larger ulps.
void ExpectClose(const std::vector<float>& y, const std::vector<double>& reference, Number type,
                 const std::string& what, double slack = 1);

// Rows [begin, end) of a matrix.
std::vector<float> Rows(const std::vector<float>& matrix, int64_t width, int64_t begin,
                        int64_t end);

struct Chunk {
  int32_t slot = 0;
  int64_t position = 0;
  std::vector<float> packed;
};

// A pool of slots on the device, first full of NaN.
class Runner {
 public:
  Runner(const Layer& layer, int64_t slots, Storage storage = {});

  // One batch, by ConvPrefill; returns y per chunk.
  std::vector<std::vector<float>> Prefill(const std::vector<Chunk>& chunks);
  // Chunks of one token, by ConvStep.
  std::vector<std::vector<float>> Step(const std::vector<Chunk>& chunks);
  // The same by the CPU's kernel, on these states; fp32 only.
  std::vector<std::vector<float>> OnCpu(const std::vector<Chunk>& chunks);

  // One sequence in slot 0: chunks of these lengths (the last one repeats); a length of 0 stands
  // for one token by Step.
  std::vector<float> RunCut(const std::vector<float>& packed, const std::vector<int64_t>& lengths);

  std::vector<float> State(int64_t slot) const;
  std::vector<float> states() const { return states_.Get(); }

 private:
  std::vector<std::vector<float>> Run(const std::vector<Chunk>& chunks, bool step);

  const Layer& layer_;
  const Storage storage_;
  const DeviceArray<float> filter_;
  const kernels::cuda::ConvModel model_;
  const int64_t slot_stride_;
  DeviceArray<float> states_;
};

// ConvEncode of sequences of these lengths, one after the other in `packed`.
std::vector<float> Encode(const Layer& layer, const std::vector<float>& packed,
                          const std::vector<int64_t>& lengths, const std::vector<float>& mask = {},
                          int64_t grid_width = 0, Storage storage = {});

}  // namespace aft::conv_test

#endif  // AFT_TESTS_CUDA_CONV_HARNESS_H_
