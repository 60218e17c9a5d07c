// MixerDevice of the CPU: two threads' scratch, on every instruction set.

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

// Two halves, the later one first, each with scratch of its own.
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
  }

  StateSpec state_spec() const override { return mixer_->state_spec(); }

  std::vector<std::vector<float>> Run(const std::vector<MixerChunk>& chunks) override {
    std::vector<int32_t> slots;
    std::vector<int64_t> positions;
    std::vector<uint8_t> generated;
    Rows rows(width_, case_.hid);
    for (const MixerChunk& chunk : chunks) {
      slots.push_back(chunk.slot);
      positions.push_back(chunk.position);
      generated.push_back(chunk.generated ? 1 : 0);
      rows.Add(chunk.packed);
    }
    Scratch scratch(mixer_->scratch_floats());
    mixer_->Forward({rows.packed.data(), width_},
                    {static_cast<int64_t>(chunks.size()), slots.data(), positions.data(),
                     rows.offsets.data(), generated.data()},
                    {states_.data(), slot_floats_}, rows.Y(), scratch.workspace());
    return rows.Parts();
  }

  std::vector<std::vector<float>> Encode(
      const std::vector<std::vector<float>>& sequences,
      const std::vector<std::vector<float>>& masks) const override {
    Rows rows(width_, case_.hid);
    int64_t longest = 0;
    for (const std::vector<float>& sequence : sequences) {
      rows.Add(sequence);
      longest = std::max(longest, static_cast<int64_t>(sequence.size()) / width_);
    }
    std::vector<float> mask;
    for (const std::vector<float>& part : masks) mask.insert(mask.end(), part.begin(), part.end());
    Scratch scratch(mixer_->encode_scratch_floats(longest));
    mixer_->Encode(
        {rows.packed.data(), width_},
        {static_cast<int64_t>(sequences.size()), rows.offsets.data(),
         masks.empty() ? nullptr : mask.data(), case_.config.grid ? case_.grid_width : 0},
        rows.Y(), scratch.workspace());
    return rows.Parts();
  }

  std::vector<float> SlotBytes(int32_t slot) const override {
    return Tokens(states_, slot_floats_, slot, slot + 1);
  }
  void SetSlotBytes(int32_t slot, const std::vector<float>& bytes) override {
    std::copy(bytes.begin(), bytes.end(), states_.begin() + slot * slot_floats_);
  }

 private:
  // A batch's matrices, row after row.
  struct Rows {
    Rows(int64_t packed_width, int64_t out_width) : width(packed_width), hid(out_width) {}

    void Add(const std::vector<float>& part) {
      packed.insert(packed.end(), part.begin(), part.end());
      offsets.push_back(static_cast<int64_t>(packed.size()) / width);
    }
    MixerOut Y() {
      y.assign(static_cast<size_t>(offsets.back() * hid), kNan);
      return {y.data(), hid};
    }
    std::vector<std::vector<float>> Parts() const {
      std::vector<std::vector<float>> parts;
      for (size_t i = 0; i + 1 < offsets.size(); ++i) {
        parts.push_back(Tokens(y, hid, offsets[i], offsets[i + 1]));
      }
      return parts;
    }

    const int64_t width;
    const int64_t hid;
    std::vector<float> packed;
    std::vector<int64_t> offsets = {0};
    std::vector<float> y;
  };

  // NaN, so that a mixer which reads what it has not written shows.
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
