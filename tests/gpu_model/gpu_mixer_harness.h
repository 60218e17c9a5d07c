#ifndef AFT_TESTS_GPU_MODEL_GPU_MIXER_HARNESS_H_
#define AFT_TESTS_GPU_MODEL_GPU_MIXER_HARNESS_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

#include "model/gpu/gpu_mixer.h"
#include "tests/cuda/device_array.h"
#include "tests/property/mixer_harness.h"

namespace aft {

// The GPU's counterpart of a TestMixer: the same tables, states of its own that start as NaN.
// Every call gets its arrays and a workspace of exactly the sizes that it may use.
class GpuTestMixer {
 public:
  GpuTestMixer(const MixerCase& mixer_case, const TestMixer& cpu, int32_t slots = 1);

  const GpuMixer& mixer() const { return *mixer_; }

  // One token of each row (Step), and prompt chunks (Prefill): y per row. With `ages`, the rows
  // use look-ahead sums, kept for all slots.
  std::vector<std::vector<float>> Step(const std::vector<MixerChunk>& rows,
                                       const std::vector<int32_t>& ages = {});
  std::vector<std::vector<float>> Prefill(const std::vector<MixerChunk>& chunks);

  // One sequence in `slot` from `position` on, cut into chunks of these lengths (the last length
  // repeats): single tokens are steps.
  std::vector<float> RunCut(const std::vector<float>& packed, const std::vector<int64_t>& lengths,
                            int32_t slot = 0, int64_t position = 0);

  // y per sequence; masks empty, or one per sequence.
  std::vector<std::vector<float>> Encode(const std::vector<std::vector<float>>& sequences,
                                         const std::vector<std::vector<float>>& masks = {}) const;

  std::vector<float> SlotBytes(int32_t slot) const;
  void SetSlotBytes(int32_t slot, const std::vector<float>& bytes);

 private:
  kernels::cuda::State state() const { return {states_->get(), slot_floats_}; }

  const MixerCase case_;
  const int64_t width_;
  const int32_t slots_;
  std::unique_ptr<GpuMixer> mixer_;
  int64_t slot_floats_ = 0;
  std::unique_ptr<DeviceArray<float>> states_;
  std::unique_ptr<DeviceArray<float>> lookahead_;
};

}  // namespace aft

#endif  // AFT_TESTS_GPU_MODEL_GPU_MIXER_HARNESS_H_
