// Tests the whole runner: what its steps promise and what it refuses. Runs on every device.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/status_matchers.h"

namespace aft {
namespace {

using testing::HasSubstr;

class RunnerTest : public RunnerFixture {};

TEST_F(RunnerTest, AnOverflowStaysInItsOwnSequence) {
  Write();
  tensors_.at("embed.weight")[7].fill_(3e38);  // finite, but its norm is not
  Rewrite();
  const std::unique_ptr<ModelRunner> runner = Load();
  Bind(*runner, 0, Greedy());
  const StepOutput alone = Step(*runner, {{{0, 0, {1, 2, 3}, RowOutput::kLast}}});
  Bind(*runner, 0, Greedy());
  Bind(*runner, 1, Greedy());
  const StepOutput both =
      Step(*runner, {{{1, 0, {1, 7}, RowOutput::kLast}, {0, 0, {1, 2, 3}, RowOutput::kLast}}});
  ASSERT_EQ(both.sampled.size(), 2U);
  EXPECT_EQ(both.sampled[0].id, kNoToken);
  EXPECT_TRUE(Same(both.sampled[1], alone.sampled[0]));
  const StepOutput scored = Step(*runner, {{{1, 0, {1, 7}, RowOutput::kScore, {7, 1}}}});
  ASSERT_EQ(scored.scored.at(0).size(), 2U);
  EXPECT_EQ(scored.scored[0][0].id, 7);
  EXPECT_EQ(scored.scored[0][1].id, kNoToken);
}

TEST_F(RunnerTest, RefusesStepsThatBreakTheRulesAndComputesNothing) {
  config_.max_seq_len = 20;
  const std::unique_ptr<ModelRunner> runner = Load();
  const auto refused = [&](StepInput input, const std::string& why) {
    EXPECT_THAT(runner->Submit(input),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  Bind(*runner, 0, Greedy());
  Step(*runner, {{{0, 0, {1, 2, 3}, RowOutput::kNone}}});
  refused({{{8, 0, {1}, RowOutput::kLast}}}, "row 0: slot 8 is out of range");
  refused({{{0, 3, {256}, RowOutput::kLast}}}, "token 256 is out of range");
  refused({{{0, 4, {1}, RowOutput::kLast}}}, "position 4, but slot 0 is at 3");
  refused({{{0, 3, RandomText(18), RowOutput::kLast}}}, "position 20 is beyond max_seq_len 20");
  StepInput large;
  for (int32_t i = 0; i < 4; ++i) large.rows.push_back({i, 0, RandomText(17), RowOutput::kNone});
  refused(large, "68 tokens in a step of at most 64");
  // None of these calls has changed the sequence.
  const StepOutput after = Step(*runner, {{{0, 3, {4}, RowOutput::kLast}}});
  Bind(*runner, 1, Greedy());
  const StepOutput fresh = Step(*runner, {{{1, 0, {1, 2, 3, 4}, RowOutput::kLast}}});
  EXPECT_TRUE(Same(after.sampled, fresh.sampled));
}

TEST_F(RunnerTest, ReportsWhatTheServerMayKnow) {
  config_.mixer.prefix_block = 16;
  const std::unique_ptr<ModelRunner> runner = Load();
  const ModelInfo& info = runner->info();
  EXPECT_EQ(info.architecture, "aft_local");
  EXPECT_EQ(info.vocab_size, 256);
  EXPECT_EQ(info.max_seq_len, device_.max_seq_len);
  EXPECT_EQ(info.state_bytes_per_token, 0);
  EXPECT_EQ(info.parameters, CountParameters(config_));
  // Two prefixes of three vectors and a ring of four tokens, padded to 64 bytes: 3 layers.
  EXPECT_EQ(info.state_bytes, 3 * (((6 + 8) * 40 * 4 + 63) / 64 * 64));
  EXPECT_GE(info.weight_bytes, info.parameters * 4);
}

}  // namespace
}  // namespace aft
