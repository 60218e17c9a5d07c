// Tests snapshots: which bytes a runner restores, and which it refuses without a change.

#include "model/runtime/snapshot.h"

#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/mixer_of.h"
#include "tests/support/status_matchers.h"

namespace aft {
namespace {

using testing::HasSubstr;

class SnapshotTest : public RunnerFixture {
 protected:
  void SetUp() override {
    runner_ = Load();
    Generate(*runner_, 0, RandomText(12), 3, Warm(5), 64);
    snapshot_ = SnapshotOf(*runner_, 0);
  }

  void ExpectRefused(ModelRunner& runner, const std::string& bytes, const std::string& why) {
    EXPECT_THAT(runner.BindSlot(1, bytes, {Warm(5)}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  }

  // The snapshot with one header field changed to that of `to`: the field in which `from` and `to`
  // differ.
  std::string Changed(const std::string& from, const std::string& to) const {
    std::string changed = snapshot_;
    for (size_t i = 0; i < to.size(); ++i) {
      if (from[i] != to[i]) changed[i] = to[i];
    }
    SealSnapshot(&changed);
    return changed;
  }

  std::unique_ptr<ModelRunner> runner_;
  std::string snapshot_;
};

TEST_F(SnapshotTest, DamageIsFoundWhereverItIsAndChangesNothing) {
  Generate(*runner_, 1, RandomText(7), 2, Warm(1), 64);
  const std::string before = SnapshotOf(*runner_, 1);
  for (size_t at = 0; at < snapshot_.size(); at += 1 + static_cast<size_t>(random_.Below(20))) {
    std::string damaged = snapshot_;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random_.Below(8)));
    ExpectRefused(*runner_, damaged, "snapshot: ");
  }
  for (const size_t length : {size_t{0}, size_t{7}, size_t{47}, snapshot_.size() - 1}) {
    ExpectRefused(*runner_, snapshot_.substr(0, length), "snapshot: ");
  }
  ExpectRefused(*runner_, snapshot_ + '\0', "snapshot: damaged");
  EXPECT_EQ(SnapshotOf(*runner_, 1), before);
  Bind(*runner_, 1, snapshot_, {Warm(5)});
}

TEST_F(SnapshotTest, SaysWhatIsWrong) {
  std::string other = snapshot_;
  other[0] = 'X';
  ExpectRefused(*runner_, other, "snapshot: these bytes are not a snapshot");
  other = snapshot_;
  other[8] = 1;
  ExpectRefused(*runner_, other, "snapshot: version 1, this program reads 4");
  other = snapshot_;
  other[100] = static_cast<char>(other[100] ^ 1);
  ExpectRefused(*runner_, other, "snapshot: damaged");
  const std::string empty = BeginSnapshot(0, 0, 0, 0);
  ExpectRefused(*runner_, Changed(empty, BeginSnapshot(0, ~uint64_t{0}, 0, 0)),
                "snapshot: of another state layout");
  ExpectRefused(*runner_, Changed(empty, BeginSnapshot(0, 0, -1, 0)), "snapshot: damaged");
  other = snapshot_.substr(0, snapshot_.size() - sizeof(float));
  SealSnapshot(&other);
  ExpectRefused(*runner_, other, "snapshot: the state has another size");
}

TEST_F(SnapshotTest, APositionBeyondTheModelsTextsIsRefused) {
  config_.max_seq_len = 16;
  Rewrite();
  runner_ = Load();
  const std::vector<SampledToken> sampled = Generate(*runner_, 0, RandomText(12), 5, Warm(5), 64);
  snapshot_ = SnapshotOf(*runner_, 0);
  ASSERT_EQ(Bind(*runner_, 1, snapshot_, {}), 16);
  const std::string empty = BeginSnapshot(0, 0, 0, 0);
  ExpectRefused(*runner_, Changed(empty, BeginSnapshot(0, 0, 17, 0)),
                "snapshot: position 17 is beyond max_seq_len 16");
}

TEST_F(SnapshotTest, OtherWeightsAndConfigsAreOtherModels) {
  options_.slots = 3;
  EXPECT_EQ(Bind(*Load(), 1, snapshot_, {}), 14);
  tensors_["norm.bias"][3] += 1e-3F;
  Rewrite();
  const std::unique_ptr<ModelRunner> weights = Load();
  ExpectRefused(*weights, snapshot_, "snapshot: of another model");
  Bind(*weights, 0, Greedy());
  const std::string of_weights = SnapshotOf(*weights, 0);
  config_.norm_eps = 2e-5F;
  Rewrite();
  const std::unique_ptr<ModelRunner> config = Load();
  ExpectRefused(*config, of_weights, "snapshot: of another model");
}

TEST_F(SnapshotTest, AFreshSlotHasASnapshotToo) {
  Bind(*runner_, 2, Warm(8));
  const std::string fresh = SnapshotOf(*runner_, 2);
  EXPECT_LT(fresh.size(), 100U);
  Bind(*runner_, 1, fresh, {Warm(8)});
  StepRow first = {1, 0, {1, 2}, RowOutput::kLast};
  StepRow second = {2, 0, {1, 2}, RowOutput::kLast};
  const StepOutput output = Step(*runner_, {{first, second}});
  ASSERT_EQ(output.sampled.size(), 2U);
  EXPECT_TRUE(Same(output.sampled[0], output.sampled[1]));
}

class SlotTest : public RunnerFixture {};

TEST_F(SlotTest, AKeptStateStaysAsItWas) {
  const std::unique_ptr<ModelRunner> runner = Load();
  const std::vector<TokenId> text = RandomText(40);
  const auto go_on = [&](int32_t slot) { return Continue(*runner, slot, 40, text[0], 6); };
  Bind(*runner, 0, Warm(3));
  Step(*runner, {{{0, 0, text, RowOutput::kNone}}});
  const std::shared_ptr<const KeptState> kept = Keep(*runner, 0);
  const std::shared_ptr<const KeptState> on_host = Keep(*runner, 0, KeptIn::kHost);
  Bind(*runner, 1, Greedy());
  const std::shared_ptr<const KeptState> nothing = Keep(*runner, 1);
  Bind(*runner, 0, ForkOf{0}, {Greedy()});
  const std::vector<SampledToken> expected = go_on(0);
  for (int32_t slot = 0; slot < 3; ++slot) {
    Generate(*runner, slot, RandomText(30), 5, Warm(4));
    for (const auto& state : {kept, on_host}) {
      Bind(*runner, slot, state.get(), {Greedy()});
      EXPECT_TRUE(Same(go_on(slot), expected)) << slot;
    }
  }
  Bind(*runner, 1, nothing.get(), {Greedy()});
  const StepOutput fresh = Step(*runner, {{{1, 0, text, RowOutput::kLast}}});
  EXPECT_TRUE(Same(fresh.sampled, Generate(*runner, 2, text, 1, Greedy())));
}

class OccupantTest : public RunnerFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  OccupantTest() { config_ = GetParam().config; }

  // Runs another text, long enough to fill rings, blocks and parts that grow.
  void Occupy(ModelRunner& runner, int32_t slot) {
    Generate(runner, slot, RandomText(40 + random_.Below(40)), 1 + random_.Below(6), Warm(3));
  }
};

// Equal texts give equal bytes, however a sequence came to its slot and whatever the slot held
// before.
TEST_P(OccupantTest, ASnapshotHoldsNothingOfTheSlotsFormerOccupants) {
  const std::unique_ptr<ModelRunner> one = Load();
  const std::unique_ptr<ModelRunner> other = Load();
  const std::vector<TokenId> text = RandomText(44);
  for (size_t tokens = 1; tokens <= text.size(); tokens += 1 + tokens / (device_.slow ? 1 : 8)) {
    SCOPED_TRACE(tokens);
    const auto cut = static_cast<size_t>(random_.Below(static_cast<int64_t>(tokens)));
    const auto read = [&](ModelRunner& runner, int32_t slot, size_t begin, size_t end) {
      if (begin == end) return;
      StepRow row = {slot, static_cast<int64_t>(begin), Slice(text, begin, end), RowOutput::kNone};
      Step(runner, {{std::move(row)}});
    };
    for (int32_t slot = 1; slot < 6; ++slot) Occupy(*one, slot);
    Occupy(*other, 0);
    Bind(*one, 1, Greedy());
    Bind(*other, 0, Greedy());
    read(*one, 1, 0, cut);
    read(*other, 0, 0, cut);
    const std::string begun = SnapshotOf(*other, 0);
    ASSERT_EQ(Bind(*one, 2, begun, {Greedy()}), static_cast<int64_t>(cut));
    Bind(*one, 3, Keep(*one, 1).get(), {Greedy()});
    Bind(*one, 4, ForkOf{1}, {Greedy()});
    Bind(*one, 5, Keep(*one, 1, KeptIn::kHost).get(), {Greedy()});
    read(*other, 0, cut, tokens);
    const std::string whole = SnapshotOf(*other, 0);
    for (int32_t slot = 1; slot < 6; ++slot) {
      EXPECT_TRUE(SnapshotOf(*one, slot) == begun) << slot;
      read(*one, slot, cut, tokens);
      EXPECT_TRUE(SnapshotOf(*one, slot) == whole) << slot;
    }
  }
}

// Every kind, and rings whose rows are not whole floats, and blocks that do not fill their lanes.
std::vector<NetworkCase> OccupantCases() {
  std::vector<NetworkCase> cases = TestedCases(DecoderCases());
  cases.push_back(FullDecodeCase());
  const auto add = [&cases](const char* name, const char* mixer) {
    cases.push_back({name, cases.front().config});
    cases.back().config.mixer = MixerOf(mixer);
    cases.back().config.max_seq_len = 0;
  };
  add("bf16_ring", "aft_local window=6 hidden=23 ring=bf16");
  add("bf16_conv_ring", "aft_conv heads=3 hidden=33 window=6 ring=bf16");
  add("uneven_blocks", "block_local heads=2 block_size=12");
  add("uneven_blocks_full_decode", "block_local heads=2 block_size=12 full_decode=true");
  for (NetworkCase& one : cases) {
    if (StateGrows(one.config.mixer)) one.config.max_seq_len = kCaseTokens;
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Property, OccupantTest, testing::ValuesIn(OccupantCases()), CaseName);

class GrowingSnapshotTest : public RunnerFixture {};

TEST_F(GrowingSnapshotTest, HoldsOnlyWhatTheSequenceUses) {
  config_.mixer = {.kind = MixerKind::kDotProduct, .heads = 4};
  config_.max_seq_len = 4096;
  const std::unique_ptr<ModelRunner> runner = Load();
  EXPECT_GE(runner->info().state_bytes, 3 * 2 * 40 * 4 * 4096);
  EXPECT_EQ(runner->info().state_bytes_per_token, 3 * 2 * 40 * 4);
  Generate(*runner, 0, RandomText(40), 1, Greedy(), 64);
  const auto used = static_cast<size_t>(runner->info().state_bytes_per_token);
  EXPECT_GE(SnapshotOf(*runner, 0).size(), 40 * used);
  EXPECT_LT(SnapshotOf(*runner, 0).size(), 80 * used);
  EXPECT_GE(Keep(*runner, 0)->bytes(), static_cast<int64_t>(40 * used));
  EXPECT_LT(Keep(*runner, 0)->bytes(), static_cast<int64_t>(80 * used));
}

}  // namespace
}  // namespace aft
