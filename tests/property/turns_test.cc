// Tests a text in turns. Each turn is restored from the state of the previous one, under its own
// terms. Runs on every device.

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/api/snapshot_bytes.h"
#include "tests/property/runner_fixture.h"

namespace aft {
namespace {

class TurnsTest : public RunnerFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  TurnsTest() { config_ = GetParam().config; }

  SamplingParams RandomParams() {
    SamplingParams params = Warm(static_cast<uint64_t>(random_.Below(1000)));
    if (random_.Below(2) == 0) params.repetition_penalty = 1.7F;
    if (random_.Below(2) == 0) params.presence_penalty = 0.8F;
    if (random_.Below(2) == 0) params.frequency_penalty = 0.6F;
    return params;
  }

  static std::vector<SampledToken> Turn(ModelRunner& runner, int32_t slot, int64_t position,
                                        const std::vector<TokenId>& unread, int64_t count) {
    const StepRow row = {slot, position, unread, RowOutput::kLast};
    std::vector<SampledToken> sampled = Step(runner, {{row}}).sampled;
    EXPECT_EQ(sampled.size(), 1U);
    if (sampled.empty()) return sampled;
    const std::vector<SampledToken> more = Continue(
        runner, slot, position + static_cast<int64_t>(unread.size()), sampled[0].id, count - 1);
    sampled.insert(sampled.end(), more.begin(), more.end());
    return sampled;
  }
};

TEST_P(TurnsTest, ATextInTurnsEqualsOneRun) {
  const std::unique_ptr<ModelRunner> runner = Load();
  for (int round = 0; round < (device_.slow ? 1 : 4); ++round) {
    const SamplingParams params = RandomParams();
    Bind(*runner, 0, params);               // the single run
    std::string state;                      // of slot 1
    std::shared_ptr<const KeptState> kept;  // of slot 2
    std::vector<TokenId> unread;
    Uses uses;
    uint64_t outputs = 0;
    for (int64_t position = 0; position < kCaseTokens - 24;) {
      const std::vector<TokenId> text = RandomText((unread.empty() ? 1 : 0) + random_.Below(12));
      unread.insert(unread.end(), text.begin(), text.end());
      const int64_t count = 1 + random_.Below(6);
      const std::vector<SampledToken> expected = Turn(*runner, 0, position, unread, count);
      // Both slots held other sequences before. A state can be used more than once.
      for (const int32_t slot : {1, 2}) {
        Generate(*runner, slot, RandomText(5), 2, RandomParams());
        StateSource from;
        if (kept != nullptr && slot == 1) from = state;
        if (kept != nullptr && slot == 2) from = kept.get();
        const std::vector<TokenUse> had = uses.all();
        ASSERT_EQ(Bind(*runner, slot, from, {params, outputs, had}), position);
        ASSERT_TRUE(Same(Turn(*runner, slot, position, unread, count), expected))
            << round << " at " << position;
      }
      uses.Add(text);
      uses.Add(expected);
      outputs += expected.size();
      position += static_cast<int64_t>(unread.size()) + count - 1;
      unread = {expected.back().id};
      state = SnapshotOf(*runner, 1);
      EXPECT_LE(static_cast<int64_t>(state.size()), MaxSnapshotBytes(runner->info(), position));
      kept = Keep(*runner, 2);
      ASSERT_NE(kept, nullptr);
      EXPECT_LE(kept->bytes(), MaxSnapshotBytes(runner->info(), position));
    }
  }
}

// The output is read in one step after the prompt, and not generated.
TEST_P(TurnsTest, ReadingItsOutputAgainContinuesATextAsGeneratingItDoes) {
  const std::unique_ptr<ModelRunner> runner = Load();
  const ModelInfo& info = runner->info();
  if (info.generated_differ || info.numerics.empty()) GTEST_SKIP() << "it makes no such promise";
  constexpr size_t kOutputs = 16;
  for (int round = 0; round < (device_.slow ? 1 : 4); ++round) {
    const SamplingParams params = RandomParams();
    const std::vector<TokenId> prompt = RandomText(1 + random_.Below(20));
    const std::vector<SampledToken> whole = Generate(*runner, 0, prompt, kOutputs, params);
    for (const size_t cut : {size_t{1}, static_cast<size_t>(1 + random_.Below(14)), kOutputs - 1}) {
      Generate(*runner, 1, RandomText(5), 2, RandomParams());
      const std::vector<SampledToken> output(whole.begin(), whole.begin() + static_cast<int>(cut));
      Uses uses;
      uses.Add(output);
      const std::vector<TokenUse> had = uses.all();
      Bind(*runner, 1, NewSequence(), {params, cut, had});
      std::vector<TokenId> text = prompt;
      for (const SampledToken& token : output) text.push_back(token.id);
      const auto first = static_cast<size_t>(random_.Below(static_cast<int64_t>(text.size())));
      if (first > 0) Step(*runner, {{{1, 0, Slice(text, 0, first), RowOutput::kNone}}});
      ASSERT_TRUE(Same(Turn(*runner, 1, static_cast<int64_t>(first),
                            Slice(text, first, text.size()), static_cast<int64_t>(kOutputs - cut)),
                       {whole.begin() + static_cast<int>(cut), whole.end()}))
          << round << " cut at " << cut;
    }
  }
}

std::vector<NetworkCase> Cases() {
  std::vector<NetworkCase> cases = TestedCases(DecoderCases());
  cases.push_back(FullDecodeCase());
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Property, TurnsTest, testing::ValuesIn(Cases()), CaseName);

}  // namespace
}  // namespace aft
