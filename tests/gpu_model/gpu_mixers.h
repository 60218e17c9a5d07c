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

// The number type of outputs (inputs are fp32), and whether matrices have gaps between their rows.
struct Storage {
  Number out = Number::kFp32;
  bool padded = false;

  std::string Name() const;
};

// A mixer on the GPU of this test program (test_queue.h). The arrays of a call, and its workspace,
// have exactly the sizes that the mixer asks for. TestedMixers() returns such mixers in this
// program.
class GpuTestMixer final : public DeviceMixer {
 public:
  GpuTestMixer(const MixerCase& mixer_case, const MixerTables& tables, int32_t slots = 1,
               Storage storage = {});

  const GpuMixer& mixer() const { return *mixer_; }

  // Computes one token of each row. With `ages` the rows use the look-ahead sums of their slots.
  std::vector<std::vector<float>> Step(const std::vector<MixerChunk>& rows,
                                       const std::vector<int32_t>& ages = {});
  std::vector<std::vector<float>> Prefill(const std::vector<MixerChunk>& chunks);

  StateSpec state_spec() const override { return mixer_->state_spec(); }
  // Runs chunks of one token by Step and the others by Prefill.
  std::vector<std::vector<float>> Run(const std::vector<MixerChunk>& chunks) override;
  std::vector<std::vector<float>> Encode(
      const std::vector<std::vector<float>>& sequences,
      const std::vector<std::vector<float>>& masks) const override;
  std::vector<float> SlotContents(int32_t slot) const override;
  void SetSlotContents(int32_t slot, const std::vector<float>& contents) override;
  // The look-ahead sums of a slot.
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
