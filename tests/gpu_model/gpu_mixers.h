#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/gpu/gpu_mixer.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/device_matrix.h"
#include "tests/property/mixer_harness.h"

namespace aft {

// Of inputs and outputs, and whether there are gaps between the rows of matrices.
struct Storage {
  Number in = Number::kFp32;
  Number out = Number::kFp32;
  bool padded = false;

  std::string Name() const;
};

// A mixer on the GPU of this test program (test_queue.h). Every call gets its arrays and a
// workspace of exactly the sizes that it may use. TestedMixers() makes these here.
class GpuTestMixer final : public DeviceMixer {
 public:
  GpuTestMixer(const MixerCase& mixer_case, const MixerTables& tables, int32_t slots = 1,
               Storage storage = {});

  const GpuMixer& mixer() const { return *mixer_; }

  // One token of each row. With `ages` the rows use look-ahead sums, kept for all slots.
  std::vector<std::vector<float>> Step(const std::vector<MixerChunk>& rows,
                                       const std::vector<int32_t>& ages = {});
  std::vector<std::vector<float>> Prefill(const std::vector<MixerChunk>& chunks);

  StateSpec state_spec() const override { return mixer_->state_spec(); }
  // Single tokens as a Step, the others as prompt chunks.
  std::vector<std::vector<float>> Run(const std::vector<MixerChunk>& chunks) override;
  std::vector<std::vector<float>> Encode(
      const std::vector<std::vector<float>>& sequences,
      const std::vector<std::vector<float>>& masks) const override;
  std::vector<float> SlotBytes(int32_t slot) const override;
  void SetSlotBytes(int32_t slot, const std::vector<float>& bytes) override;
  // Look-ahead sums of a slot.
  std::vector<float> SlotScratch(int32_t slot) const;

 private:
  struct Batch;
  kernels::cuda::State state() const { return {states_->get(), slot_floats_}; }

  const MixerCase case_;
  const int64_t width_;
  const Storage storage_;
  std::unique_ptr<GpuMixer> mixer_;
  int64_t slot_floats_ = 0;
  std::unique_ptr<DeviceArray<float>> states_;
  std::unique_ptr<DeviceArray<float>> slot_scratch_;
};

}  // namespace aft
