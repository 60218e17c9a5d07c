// Mixers as the network sees them: the served form against the trained form, and the registry.

#include "model/mixers/mixer.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/ops/allclose.h"
#include "ATen/ops/empty.h"
#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "model/mixers/train_form.h"
#include "model/network/tensors.h"
#include "model/state/state_pool.h"
#include "tests/property/random_inputs.h"

namespace aft {
namespace {

// Runs on the caller.
class SerialExecutor final : public Executor {
 public:
  int threads() const override { return 1; }
  void For(int64_t n, int64_t /*grain*/,
           absl::FunctionRef<void(int64_t, int64_t, int)> fn) const override {
    if (n > 0) fn(0, n, 0);
  }
};

class MixerTest : public testing::Test {
 protected:
  static constexpr int64_t kHid = 24;

  at::Tensor Random(std::vector<int64_t> shape) {
    at::Tensor tensor = at::empty(shape, at::kFloat);
    const std::vector<float> values = random_.Normals(tensor.numel());
    std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
    return tensor;
  }

  std::unique_ptr<Mixer> Make(const MixerConfig& config) {
    tables_.clear();
    if (config.window > 0)
      tables_["w.band"] = Random({std::max<int64_t>(config.band_rows, 1), config.window});
    absl::StatusOr<std::unique_ptr<Mixer>> mixer = MakeMixer(config, kHid, tables_);
    EXPECT_TRUE(mixer.ok()) << mixer.status();
    return *std::move(mixer);
  }

  // packed [B, T, 3 * hid] -> [B, T, hid], every sequence in a slot of its own.
  at::Tensor Forward(const Mixer& mixer, const at::Tensor& packed) {
    const int64_t batch = packed.size(0);
    const int64_t tokens = packed.size(1);
    StatePool states = *StatePool::Create({mixer.state_spec()}, static_cast<int32_t>(batch));
    std::vector<int32_t> slots;
    std::vector<int64_t> positions(static_cast<size_t>(batch), 0);
    std::vector<int64_t> offsets = {0};
    for (int64_t i = 0; i < batch; ++i) {
      slots.push_back(static_cast<int32_t>(batch - 1 - i));
      offsets.push_back((i + 1) * tokens);
    }
    std::vector<float> scratch(static_cast<size_t>(mixer.scratch_floats()));
    const SerialExecutor executor;
    at::Tensor y = at::empty({batch, tokens, kHid}, at::kFloat);
    mixer.Forward({packed.const_data_ptr<float>(), PackedWidth({}, kHid)},
                  {batch, slots.data(), positions.data(), offsets.data()}, states.layer(0),
                  {y.data_ptr<float>(), kHid}, {&executor, scratch.data(), 0});
    return y;
  }

  TestRandom random_;
  MixerTables tables_;  // of the mixer made last
};

TEST_F(MixerTest, ServesWhatWasTrained) {
  for (const MixerConfig& config :
       {MixerConfig{MixerKind::kAftSimple, 0, 0, 0}, MixerConfig{MixerKind::kAftSimple, 0, 0, 16},
        MixerConfig{MixerKind::kAftLocal, 1, 0, 0}, MixerConfig{MixerKind::kAftLocal, 8, 0, 0},
        MixerConfig{MixerKind::kAftLocal, 8, 64, 0}, MixerConfig{MixerKind::kAftLocal, 8, 0, 16},
        MixerConfig{MixerKind::kAftLocal, 16, 0, 16}}) {
    const std::unique_ptr<Mixer> mixer = Make(config);
    const at::Tensor packed = Random({3, 64, 3 * kHid});
    EXPECT_TRUE(
        at::allclose(Forward(*mixer, packed), TrainForm(config, packed, tables_), 1e-4, 1e-5))
        << config.window << " " << config.prefix_block;
  }
}

TEST_F(MixerTest, LocalWithoutWindowIsSimple) {
  const at::Tensor packed = Random({2, 50, 3 * kHid});
  EXPECT_TRUE(Forward(*Make({MixerKind::kAftLocal, 0, 0, 0}), packed)
                  .equal(Forward(*Make({MixerKind::kAftSimple, 0, 0, 0}), packed)));
}

TEST_F(MixerTest, StateSectionsAreContiguousAndComplete) {
  const StateSpec spec = Make({MixerKind::kAftLocal, 8, 0, 16})->state_spec();
  int64_t end = 0;
  for (const StateSection& section : spec.sections) {
    EXPECT_EQ(section.offset, end) << section.name;
    end += section.floats;
  }
  EXPECT_EQ(end, spec.floats);
  EXPECT_EQ(spec.floats, (2 * 3 + 2 * 7) * kHid);
}

TEST_F(MixerTest, RefusesABandThatDoesNotFit) {
  const MixerConfig config = {MixerKind::kAftLocal, 8, 0, 0};
  EXPECT_EQ(MakeMixer(config, kHid, {}).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(MakeMixer(config, kHid, {{"w.band", Random({1, 7})}}).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(MakeMixer(config, kHid, {{"w.band", Random({1, 8}).to(at::kDouble)}}).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(StatePoolTest, SlotsAreOneAlignedBlockEach) {
  const std::vector<StateSpec> layers = {{17, {}}, {16, {}}, {1, {}}};
  StatePool pool = *StatePool::Create(layers, 3);
  EXPECT_EQ(pool.slot_bytes(), (32 + 16 + 16) * 4);
  EXPECT_EQ(pool.slot_bytes(), StatePool::SlotBytes(layers));
  EXPECT_EQ(pool.bytes(), 3 * pool.slot_bytes());
  EXPECT_EQ(pool.layer(1).base - pool.layer(0).base, 32);
  EXPECT_EQ(pool.layer(2).base - pool.layer(0).base, 48);
  EXPECT_EQ(pool.layer(2).slot_stride * 4, pool.slot_bytes());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pool.layer(0).base) % 64, 0U);
}

}  // namespace
}  // namespace aft
