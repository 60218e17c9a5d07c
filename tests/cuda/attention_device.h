#ifndef AFT_TESTS_CUDA_ATTENTION_DEVICE_H_
#define AFT_TESTS_CUDA_ATTENTION_DEVICE_H_

#include <cstdint>
#include <vector>

#include "model/kernels/cuda/attention/attention.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/device_matrix.h"
#include "tests/property/attention_harness.h"

namespace aft {

// The attention kernels of model/kernels/cuda over a pool of slots whose memory starts as NaN, so
// that any read of what was never written shows. Rows of y are longer than hid; what lies between
// must stay as it was.
class DeviceAttention {
 public:
  DeviceAttention(const AttentionLayer& layer, int64_t slots, Number in = Number::kFp32,
                  Number out = Number::kFp32);

  // One batch; y per chunk. Step: chunks of one token.
  std::vector<std::vector<float>> Step(const std::vector<AttentionChunk>& chunks);
  std::vector<std::vector<float>> Prefill(const std::vector<AttentionChunk>& chunks);

  // As AttentionRunner::RunCut; chunks of one token are steps.
  std::vector<float> RunCut(const std::vector<float>& packed, const std::vector<int64_t>& lengths,
                            int64_t generated = INT64_MAX);

  // Masks are empty or one per sequence.
  std::vector<std::vector<float>> Encode(const std::vector<std::vector<float>>& sequences,
                                         const std::vector<std::vector<float>>& masks);

  std::vector<float> states() const { return states_.Get(); }
  void set_states(const std::vector<float>& states) { states_.Set(states); }

 private:
  struct Batch;

  kernels::AttentionParams DeviceParams() const;
  kernels::cuda::State state() const { return {states_.get(), layer_.slot_floats()}; }
  std::vector<std::vector<float>> Outputs(const Batch& batch) const;

  const AttentionLayer& layer_;
  const Number in_;
  const Number out_;
  DeviceArray<float> score_weight_;
  DeviceArray<float> position_keys_;
  DeviceArray<float> states_;
};

}  // namespace aft

#endif  // AFT_TESTS_CUDA_ATTENTION_DEVICE_H_
