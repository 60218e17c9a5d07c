// The MixerDevice of the CPU, with the scratch memory of two threads, on every instruction set.

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "model/config/tensors.h"
#include "tests/property/instruction_sets.h"
#include "tests/property/mixer_harness.h"

namespace aft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kThreads = 2;

// Runs the work in two halves, the second one first, each with its own scratch memory.
class TwoHalves final : public Executor {
 public:
  int threads() const override { return kThreads; }
  void For(int64_t n, int64_t /*grain*/,
           absl::FunctionRef<void(int64_t, int64_t, int)> fn) const override {
    if (n / 2 < n) fn(n / 2, n, 1);
    if (n / 2 > 0) fn(0, n / 2, 0);
  }
};

class CpuMixer final : public DeviceMixer {
 public:
  CpuMixer(const MixerCase& mixer_case, const MixerTables& tables, int32_t slots)
      : case_(mixer_case), width_(PackedWidth(case_.config, case_.hid)) {
    MixerOptions options;
    options.max_seq_len = case_.tokens;
    absl::StatusOr<std::unique_ptr<Mixer>> mixer =
        MakeMixer(case_.config, case_.hid, tables, options);
    AFT_CHECK(mixer.ok());
    mixer_ = *std::move(mixer);
    if (!case_.config.causal) return;
    slot_floats_ = (mixer_->state_spec().floats + 15) / 16 * 16;
    states_.assign(static_cast<size_t>(slots * slot_floats_), kNan);
    slot_scratch_floats_ = mixer_->state_spec().scratch_floats;
    slot_scratch_.assign(static_cast<size_t>(slots * slot_scratch_floats_), kNan);
  }

  StateSpec state_spec() const override { return mixer_->state_spec(); }

  std::vector<std::vector<float>> Run(const std::vector<MixerChunk>& chunks) override {
    const MixerRows rows(chunks, width_);
    std::vector<float> y(static_cast<size_t>(rows.tokens() * case_.hid), kNan);
    Scratch scratch(mixer_->scratch_floats());
    mixer_->Forward({rows.packed.data(), width_},
                    {rows.count(), rows.slots.data(), rows.positions.data(), rows.offsets.data(),
                     rows.generated.data()},
                    {states_.data(), slot_floats_, slot_scratch_.data(), slot_scratch_floats_},
                    {y.data(), case_.hid}, scratch.workspace());
    return rows.Parts(y, case_.hid);
  }

  std::vector<std::vector<float>> Encode(
      const std::vector<std::vector<float>>& sequences,
      const std::vector<std::vector<float>>& masks) const override {
    const MixerRows rows(sequences, width_);
    const std::vector<float> mask = MixerRows(masks, 1).packed;
    std::vector<float> y(static_cast<size_t>(rows.tokens() * case_.hid), kNan);
    Scratch scratch(mixer_->encode_scratch_floats(rows.longest));
    mixer_->Encode({rows.packed.data(), width_},
                   {rows.count(), rows.offsets.data(), masks.empty() ? nullptr : mask.data(),
                    case_.config.grid ? case_.grid_width : 0},
                   {y.data(), case_.hid}, scratch.workspace());
    return rows.Parts(y, case_.hid);
  }

  std::vector<float> SlotContents(int32_t slot) const override {
    return Tokens(states_, slot_floats_, slot, slot + 1);
  }
  void SetSlotContents(int32_t slot, const std::vector<float>& contents) override {
    std::copy(contents.begin(), contents.end(), states_.begin() + slot * slot_floats_);
    std::fill_n(slot_scratch_.begin() + slot * slot_scratch_floats_, slot_scratch_floats_, 0.0F);
  }

 private:
  // Starts as NaN, so that a mixer that reads memory which it has not written is found.
  struct Scratch {
    explicit Scratch(int64_t per_thread)
        : stride((per_thread + 15) / 16 * 16),
          floats(static_cast<size_t>(kThreads * stride), kNan) {}
    Workspace workspace() { return {&executor, floats.data(), stride}; }

    const TwoHalves executor;
    const int64_t stride;
    std::vector<float> floats;
  };

  const MixerCase case_;
  const int64_t width_;
  std::unique_ptr<Mixer> mixer_;
  int64_t slot_floats_ = 0;
  std::vector<float> states_;
  int64_t slot_scratch_floats_ = 0;
  std::vector<float> slot_scratch_;
};

}  // namespace

const MixerDevice& CpuMixers() {
  static const MixerDevice device = {[](const MixerCase& mixer_case, const MixerTables& tables,
                                        int32_t slots) -> std::unique_ptr<DeviceMixer> {
                                       return std::make_unique<CpuMixer>(mixer_case, tables, slots);
                                     },
                                     InstructionSets(), tolerance::kFp32, tolerance::kFp32,
                                     /*one_order=*/true};
  return device;
}

}  // namespace aft
