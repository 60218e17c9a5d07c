#include "tests/gpu_model/gpu_mixers.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "model/config/formats.h"
#include "model/config/tensors.h"
#include "tests/gpu_model/test_queue.h"

namespace aft {

namespace cuda = kernels::cuda;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Returns a stride that aligns rows to 16 bytes, with a gap after each row if `padded`.
int64_t Stride(int64_t width, bool padded) { return padded ? (width + 15) / 8 * 8 : width; }

}  // namespace

std::string Storage::Name() const {
  return absl::StrCat("fp32 to ", NumberName(out), padded ? ", gaps between rows" : "");
}

// A batch on the device, with its output and its workspace.
struct GpuTestMixer::Batch : MixerRows {
  Batch(const GpuTestMixer& on, const MixerRows& rows)
      : MixerRows(rows),
        slot(slots),
        position(positions),
        generated_row(generated),
        offset(offsets),
        in(packed, on.width_, Number::kFp32, Stride(on.width_, on.storage_.padded)),
        out(tokens(), on.case_.hid, on.storage_.out, Stride(on.case_.hid, on.storage_.padded)),
        workspace(static_cast<size_t>(on.mixer_->workspace_floats({count(), tokens(), count()}))) {}

  std::vector<std::vector<float>> Outputs(int64_t hid) const { return Parts(out.Get(), hid); }

  const DeviceArray<int32_t> slot;
  const DeviceArray<int64_t> position;
  const DeviceArray<uint8_t> generated_row;
  const DeviceArray<int64_t> offset;
  const DeviceMatrix in;
  const DeviceMatrix out;
  const DeviceArray<float> workspace;
};

GpuTestMixer::GpuTestMixer(const MixerCase& mixer_case, const MixerTables& tables, int32_t slots,
                           Storage storage)
    : case_(mixer_case), width_(PackedWidth(case_.config, case_.hid)), storage_(storage) {
  MixerOptions options;
  options.max_seq_len = case_.tokens;
  absl::StatusOr<std::unique_ptr<GpuMixer>> mixer =
      MakeGpuMixer(case_.config, case_.hid, tables, options, TestDevice());
  AFT_CHECK(mixer.ok());
  mixer_ = *std::move(mixer);
  if (!case_.config.causal) return;
  slot_floats_ = (mixer_->state_spec().floats + 15) / 16 * 16;
  const auto floats = static_cast<size_t>(slots * slot_floats_);
  states_ = std::make_unique<DeviceArray<float>>(std::vector<float>(floats, kNan));
  slot_scratch_ = std::make_unique<DeviceArray<float>>(
      static_cast<size_t>(slots * mixer_->slot_scratch_floats()));
}

std::vector<std::vector<float>> GpuTestMixer::Step(const std::vector<MixerChunk>& rows,
                                                   const std::vector<int32_t>& ages) {
  const Batch batch(*this, {rows, width_});
  AFT_CHECK(batch.longest <= 1);
  const DeviceArray<int32_t> age(ages);
  EXPECT_EQ(mixer_->Step({batch.count(), batch.slot.get(), batch.position.get(),
                          batch.generated_row.get(), ages.empty() ? nullptr : age.get()},
                         batch.in.in(), state(), ages.empty() ? nullptr : slot_scratch_->get(),
                         batch.out.out(), batch.workspace.get(), nullptr),
            absl::OkStatus());
  return batch.Outputs(case_.hid);
}

std::vector<std::vector<float>> GpuTestMixer::Prefill(const std::vector<MixerChunk>& chunks) {
  const Batch batch(*this, {chunks, width_});
  EXPECT_EQ(
      mixer_->Prefill({batch.count(), batch.slot.get(), batch.position.get(), batch.offset.get(),
                       batch.generated_row.get(), batch.tokens(), batch.longest},
                      batch.in.in(), state(), batch.out.out(), batch.workspace.get(), nullptr),
      absl::OkStatus());
  return batch.Outputs(case_.hid);
}

std::vector<std::vector<float>> GpuTestMixer::Run(const std::vector<MixerChunk>& chunks) {
  std::vector<MixerChunk> parts[2];  // chunks of one token, longer chunks
  std::vector<int> kind;
  for (const MixerChunk& chunk : chunks) {
    kind.push_back(static_cast<int64_t>(chunk.packed.size()) > width_ ? 1 : 0);
    parts[kind.back()].push_back(chunk);
  }
  std::vector<std::vector<float>> results[2];
  if (!parts[0].empty()) results[0] = Step(parts[0]);
  if (!parts[1].empty()) results[1] = Prefill(parts[1]);
  std::vector<std::vector<float>> y;
  size_t next[2] = {0, 0};
  for (const int k : kind) y.push_back(std::move(results[k][next[k]++]));
  return y;
}

std::vector<std::vector<float>> GpuTestMixer::Encode(
    const std::vector<std::vector<float>>& sequences,
    const std::vector<std::vector<float>>& masks) const {
  const Batch batch(*this, {sequences, width_});
  const DeviceArray<float> mask(MixerRows(masks, 1).packed);
  EXPECT_EQ(
      mixer_->Encode({batch.count(), batch.offset.get(), masks.empty() ? nullptr : mask.get(),
                      case_.config.grid ? case_.grid_width : 0, batch.tokens(), batch.longest},
                     batch.in.in(), batch.out.out(), batch.workspace.get(), nullptr),
      absl::OkStatus());
  return batch.Outputs(case_.hid);
}

std::vector<float> GpuTestMixer::SlotContents(int32_t slot) const {
  return Tokens(states_->Get(), slot_floats_, slot, slot + 1);
}
void GpuTestMixer::SetSlotContents(int32_t slot, const std::vector<float>& contents) {
  std::vector<float> states = states_->Get();
  std::copy(contents.begin(), contents.end(), states.begin() + slot * slot_floats_);
  states_->Set(states);
}
std::vector<float> GpuTestMixer::SlotScratch(int32_t slot) const {
  return Tokens(slot_scratch_->Get(), mixer_->slot_scratch_floats(), slot, slot + 1);
}

const MixerDevice& TestedMixers() {
  static const MixerDevice device = {[](const MixerCase& mixer_case, const MixerTables& tables,
                                        int32_t slots) -> std::unique_ptr<DeviceMixer> {
                                       return std::make_unique<GpuTestMixer>(mixer_case, tables,
                                                                             slots);
                                     },
                                     {0},
                                     tolerance::kFp32,
                                     tolerance::kFp32,
                                     /*one_order=*/false};
  return device;
}

}  // namespace aft
