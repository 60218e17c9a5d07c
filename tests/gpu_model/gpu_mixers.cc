#include "tests/gpu_model/gpu_mixers.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "gtest/gtest.h"
#include "model/config/tensors.h"
#include "tests/gpu_model/test_queue.h"

namespace aft {

namespace cuda = kernels::cuda;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The rows of a batch, one after the other, on the device.
struct Batch {
  Batch(const std::vector<MixerChunk>& chunks, int64_t width) {
    std::vector<int32_t> slots;
    std::vector<int64_t> positions;
    std::vector<float> values;
    for (const MixerChunk& chunk : chunks) {
      slots.push_back(chunk.slot);
      positions.push_back(chunk.position);
      values.insert(values.end(), chunk.packed.begin(), chunk.packed.end());
      offsets.push_back(static_cast<int64_t>(values.size()) / width);
      longest = std::max(longest, offsets.back() - offsets[offsets.size() - 2]);
    }
    slot = std::make_unique<DeviceArray<int32_t>>(slots);
    position = std::make_unique<DeviceArray<int64_t>>(positions);
    offset = std::make_unique<DeviceArray<int64_t>>(offsets);
    packed = std::make_unique<DeviceArray<float>>(values);
  }

  int64_t tokens() const { return offsets.back(); }

  std::vector<int64_t> offsets = {0};
  int64_t longest = 0;
  std::unique_ptr<DeviceArray<int32_t>> slot;
  std::unique_ptr<DeviceArray<int64_t>> position;
  std::unique_ptr<DeviceArray<int64_t>> offset;
  std::unique_ptr<DeviceArray<float>> packed;
};

// The matrix in the rows' parts.
std::vector<std::vector<float>> Parts(const DeviceArray<float>& y, int64_t width,
                                      const std::vector<int64_t>& offsets) {
  const std::vector<float> values = y.Get();
  std::vector<std::vector<float>> parts;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    parts.push_back(Tokens(values, width, offsets[i], offsets[i + 1]));
  }
  return parts;
}

}  // namespace

GpuTestMixer::GpuTestMixer(const MixerCase& mixer_case, const MixerTables& tables, int32_t slots)
    : case_(mixer_case), width_(PackedWidth(case_.config, case_.hid)) {
  MixerOptions options;
  options.max_seq_len = 2 * kMixerTokens;
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
  const Batch batch(rows, width_);
  AFT_CHECK(batch.longest <= 1);
  const DeviceArray<int32_t> age(ages);
  const auto count = static_cast<int64_t>(rows.size());
  const DeviceArray<float> y(static_cast<size_t>(count * case_.hid));
  const DeviceArray<float> workspace(
      static_cast<size_t>(mixer_->workspace_floats({count, batch.tokens()})));
  EXPECT_EQ(mixer_->Step({count, batch.slot->get(), batch.position->get(), nullptr,
                          ages.empty() ? nullptr : age.get()},
                         {batch.packed->get(), Number::kFp32, width_}, state(),
                         ages.empty() ? nullptr : slot_scratch_->get(),
                         {y.get(), Number::kFp32, case_.hid}, workspace.get(), nullptr),
            absl::OkStatus());
  return Parts(y, case_.hid, batch.offsets);
}

std::vector<std::vector<float>> GpuTestMixer::Prefill(const std::vector<MixerChunk>& chunks) {
  const Batch batch(chunks, width_);
  const auto count = static_cast<int64_t>(chunks.size());
  const DeviceArray<float> y(static_cast<size_t>(batch.tokens() * case_.hid));
  const DeviceArray<float> workspace(
      static_cast<size_t>(mixer_->workspace_floats({count, batch.tokens()})));
  EXPECT_EQ(mixer_->Prefill({count, batch.slot->get(), batch.position->get(), batch.offset->get(),
                             nullptr, batch.tokens(), batch.longest},
                            {batch.packed->get(), Number::kFp32, width_}, state(),
                            {y.get(), Number::kFp32, case_.hid}, workspace.get(), nullptr),
            absl::OkStatus());
  return Parts(y, case_.hid, batch.offsets);
}

std::vector<std::vector<float>> GpuTestMixer::Run(const std::vector<MixerChunk>& chunks) {
  std::vector<MixerChunk> parts[2];  // single tokens, others
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
  std::vector<MixerChunk> chunks;
  for (const std::vector<float>& sequence : sequences) chunks.push_back({0, 0, sequence});
  const Batch batch(chunks, width_);
  std::vector<float> values;
  for (const std::vector<float>& part : masks) {
    values.insert(values.end(), part.begin(), part.end());
  }
  const DeviceArray<float> mask(values);
  const auto count = static_cast<int64_t>(sequences.size());
  const DeviceArray<float> y(static_cast<size_t>(batch.tokens() * case_.hid));
  const DeviceArray<float> workspace(
      static_cast<size_t>(mixer_->workspace_floats({count, batch.tokens()})));
  EXPECT_EQ(
      mixer_->Encode({count, batch.offset->get(), masks.empty() ? nullptr : mask.get(),
                      case_.config.grid ? case_.grid_width : 0, batch.tokens(), batch.longest},
                     {batch.packed->get(), Number::kFp32, width_},
                     {y.get(), Number::kFp32, case_.hid}, workspace.get(), nullptr),
      absl::OkStatus());
  return Parts(y, case_.hid, batch.offsets);
}

std::vector<float> GpuTestMixer::SlotBytes(int32_t slot) const {
  return Tokens(states_->Get(), slot_floats_, slot, slot + 1);
}
void GpuTestMixer::SetSlotBytes(int32_t slot, const std::vector<float>& bytes) {
  std::vector<float> states = states_->Get();
  std::copy(bytes.begin(), bytes.end(), states.begin() + slot * slot_floats_);
  states_->Set(states);
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
