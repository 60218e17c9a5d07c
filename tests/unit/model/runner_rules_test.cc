// The rules for the input of runners on every device: each rule at its limit and one beyond.

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/runtime/snapshot.h"
#include "model/runtime/step_rules.h"
#include "model/runtime/text_rules.h"

namespace aft {
namespace {

using testing::HasSubstr;

constexpr StepRules::Limits kLimits = {
    .slots = 2, .max_step_tokens = 5, .vocab_size = 10, .max_seq_len = 4};

StepRow Row(int32_t slot, int64_t position, std::vector<TokenId> tokens,
            RowOutput output = RowOutput::kLast, std::vector<TokenId> targets = {}) {
  StepRow row;
  row.slot = slot;
  row.first_position = position;
  row.tokens = std::move(tokens);
  row.output = output;
  row.targets = std::move(targets);
  return row;
}

// The error of a step with these rows, whose sequences begin there; "" if the step is accepted.
std::string Error(std::vector<StepRow> rows) {
  StepRules rules(kLimits);
  return std::string(rules.Check({std::move(rows)}).message());
}

TEST(StepRulesTest, AcceptsWhatIsAtTheLimits) {
  EXPECT_EQ(Error({}), "");
  EXPECT_EQ(Error({Row(1, 0, {0, 9, 0, 9}), Row(0, 0, {0})}), "");
  EXPECT_EQ(Error({Row(0, 0, {1, 2}, RowOutput::kScore, {2, 9})}), "");
  EXPECT_EQ(Error({Row(0, 0, {1, 2}, RowOutput::kScore, {0})}), "");
}

TEST(StepRulesTest, ALimitOfOneTokenCountsAndZeroIsNoLimit) {
  StepRules::Limits limits = kLimits;
  limits.max_seq_len = 1;
  StepRules one(limits);
  EXPECT_TRUE(one.Check({{Row(0, 0, {1})}}).ok());
  EXPECT_EQ(one.Check({{Row(0, 0, {1, 1})}}).message(),
            "row 0: position 1 is beyond max_seq_len 1");
  limits.max_seq_len = 0;
  EXPECT_TRUE(StepRules(limits).Check({{Row(0, 0, {1, 1, 1, 1, 1})}}).ok());
}

TEST(StepRulesTest, NamesWhatIsBeyondTheLimits) {
  EXPECT_EQ(Error({Row(0, 0, {1}), Row(2, 0, {1})}), "row 1: slot 2 is out of range");
  EXPECT_EQ(Error({Row(-1, 0, {1})}), "row 0: slot -1 is out of range");
  EXPECT_EQ(Error({Row(1, 0, {1}), Row(1, 0, {1})}), "row 1: slot 1 occurs twice");
  EXPECT_EQ(Error({Row(0, 0, {})}), "row 0: no tokens");
  EXPECT_EQ(Error({Row(0, 1, {1})}), "row 0: position 1, but slot 0 is at 0");
  EXPECT_EQ(Error({Row(0, 0, {1, 1, 1, 1, 1})}), "row 0: position 4 is beyond max_seq_len 4");
  EXPECT_EQ(Error({Row(0, 0, {10})}), "row 0: token 10 is out of range");
  EXPECT_EQ(Error({Row(0, 0, {-9})}), "row 0: token -9 is out of range");
  EXPECT_EQ(Error({Row(0, 0, {1, 1, 1}), Row(1, 0, {1, 1, 1})}), "6 tokens in a step of at most 5");
  EXPECT_EQ(Error({Row(0, 0, {1}, RowOutput::kLast, {1})}), "row 0: targets, but nothing to score");
  for (const std::vector<TokenId>& targets : {std::vector<TokenId>{}, {1, 1, 1}}) {
    EXPECT_THAT(Error({Row(0, 0, {1, 2}, RowOutput::kScore, targets)}), HasSubstr("targets for 2"));
  }
  EXPECT_EQ(Error({Row(0, 0, {1}, RowOutput::kScore, {10})}), "row 0: target 10 is out of range");
  EXPECT_EQ(Error({Row(0, 0, {1}, RowOutput::kScore, {-1})}), "row 0: target -1 is out of range");
}

TEST(StepRulesTest, ARowHasAtMostAsManyHiddenVectorsAsTokens) {
  const auto error = [](int64_t hidden, RowOutput output = RowOutput::kHidden) {
    StepRow row = Row(0, 0, {1, 2}, output);
    row.hidden = hidden;
    return Error({row});
  };
  EXPECT_EQ(error(1), "");
  EXPECT_EQ(error(2), "");
  EXPECT_EQ(error(0), "row 0: 0 hidden vectors of 2 tokens");
  EXPECT_EQ(error(3), "row 0: 3 hidden vectors of 2 tokens");
  EXPECT_EQ(error(1, RowOutput::kLast), "row 0: 1 hidden vectors of 2 tokens");
}

TEST(StepRulesTest, BansNeedARowThatSamplesAndAscendingIds) {
  const auto error = [](std::vector<TokenId> banned, RowOutput output = RowOutput::kLast) {
    StepRow row = Row(0, 0, {1}, output);
    row.banned = std::move(banned);
    return Error({row});
  };
  EXPECT_EQ(error({0, 4, 9}), "");
  EXPECT_EQ(error({4}, RowOutput::kNone), "row 0: bans, but nothing to sample");
  EXPECT_EQ(error({4, 10}), "row 0: banned token 10 is out of range");
  EXPECT_EQ(error({-1, 4}), "row 0: banned token -1 is out of range");
  EXPECT_EQ(error({4, 4}), "row 0: bans are out of order");
  EXPECT_EQ(error({4, 3}), "row 0: bans are out of order");
  EXPECT_EQ(error(std::vector<TokenId>(kMaxRowBans + 1)), "row 0: 257 bans");
  StepRules::Limits limits = kLimits;
  limits.vocab_size = kMaxRowBans;
  StepRow row = Row(0, 0, {1});
  row.banned.resize(kMaxRowBans);
  std::iota(row.banned.begin(), row.banned.end(), 0);
  EXPECT_EQ(StepRules(limits).Check({{row}}), absl::OkStatus());
}

TEST(StepRulesTest, LastSampledStandsAloneAndOnlyAfterASampledToken) {
  StepRules rules(kLimits);
  const auto run = [&](StepRow row) {
    const StepInput input = {{std::move(row)}};
    const absl::Status status = rules.Check(input);
    if (status.ok()) rules.Advance(input);
    return status.ok();
  };
  EXPECT_TRUE(run(Row(0, 0, {1}, RowOutput::kNone)));
  EXPECT_FALSE(run(Row(0, 1, {kLastSampled})));
  EXPECT_TRUE(run(Row(0, 1, {1})));
  EXPECT_FALSE(run(Row(0, 2, {kLastSampled, 1})));
  EXPECT_TRUE(run(Row(0, 2, {kLastSampled})));
  rules.Bind(0, /*position=*/3, {});
  EXPECT_FALSE(run(Row(0, 3, {kLastSampled})));
  EXPECT_FALSE(run(Row(0, 2, {1})));
  EXPECT_TRUE(run(Row(0, 3, {1})));
  EXPECT_EQ(rules.sequence(0).next_position, 4);
}

TEST(SnapshotFormatTest, EveryFieldRoundTrips) {
  std::string bytes = BeginSnapshot(1, 2, /*position=*/int64_t{9} << 40, /*state_bytes=*/4);
  SealSnapshot(&bytes);
  const absl::StatusOr<OpenedSnapshot> opened = OpenSnapshot(bytes, 1, 2);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->position, int64_t{9} << 40);
  EXPECT_EQ(opened->state.size(), 4);
}

TEST(TextRulesTest, AcceptsWhatIsAtTheLimitsAndNamesWhatIsBeyond) {
  const TextLimits limits = {
      .max_batch_rows = 2, .max_batch_tokens = 5, .vocab_size = 10, .max_seq_len = 4, .width = 3};
  const auto error = [&](const std::vector<std::vector<TokenId>>& texts) {
    return std::string(CheckTexts(limits, TextInputs(texts)).message());
  };
  EXPECT_EQ(error({{0, 9, 0, 9}, {0}}), "");
  EXPECT_EQ(error({{1}, {1}, {1}}), "3 sequences in a batch of at most 2");
  EXPECT_EQ(error({{1}, {}}), "sequence 1: no tokens");
  EXPECT_EQ(error({{1, 1, 1, 1, 1}}), "sequence 0: 5 tokens; max_seq_len is 4");
  EXPECT_EQ(error({{10}}), "sequence 0: token 10 is out of range");
  EXPECT_EQ(error({{-1}}), "sequence 0: token -1 is out of range");
  EXPECT_EQ(error({{1, 1, 1}, {1, 1, 1}}), "6 tokens in a batch of at most 5");
  EXPECT_EQ(limits.longest(), 4);
  EXPECT_EQ((TextLimits{.max_batch_tokens = 5}).longest(), 5);
  EXPECT_EQ((TextLimits{.max_batch_tokens = 3, .max_seq_len = 4}).longest(), 3);
}

TEST(TextRulesTest, VectorsCountAsTokens) {
  const TextLimits limits = {
      .max_batch_rows = 2, .max_batch_tokens = 5, .max_seq_len = 4, .width = 3};
  const auto error = [&](const std::vector<EncoderInput>& inputs) {
    return std::string(CheckTexts(limits, inputs).message());
  };
  const auto vectors = [](size_t numbers) {
    return EncoderInput{.vectors = std::vector<float>(numbers)};
  };
  EXPECT_EQ(error({vectors(12), vectors(3)}), "");
  EXPECT_EQ(error({vectors(15)}), "sequence 0: 5 tokens; max_seq_len is 4");
  EXPECT_EQ(error({vectors(9), vectors(9)}), "6 tokens in a batch of at most 5");
  EXPECT_EQ(error({vectors(2)}), "sequence 0: 2 numbers in vectors of 3");
  EXPECT_EQ(error({{{1}}}), "sequence 0: token 1 is out of range");
}

TEST(TextRulesTest, PairsAreLimitedWhereEachOfThemCostsAScore) {
  TextLimits limits = {.max_batch_rows = 1,
                       .max_batch_tokens = 5000,
                       .vocab_size = 2,
                       .width = 1,
                       .forms = {.pairs = true, .sources = true, .free_lengths = true}};
  const auto error = [&limits](const EncoderInput& input) {
    return std::string(CheckTexts(limits, {input}).message());
  };
  const auto masked = [](size_t tokens) {
    return EncoderInput{.vectors = TokenVectors(tokens),
                        .pairs = std::make_shared<std::vector<float>>(tokens * tokens)};
  };
  const auto with_keys = [](size_t tokens, size_t keys) {
    return EncoderInput{
        .vectors = TokenVectors(tokens), .keys = TokenVectors(keys), .values = TokenVectors(keys)};
  };
  static_assert(kMaxPairs == 2048 * 2048);
  EXPECT_EQ(error({std::vector<TokenId>(4096)}), "");
  EXPECT_EQ(error(masked(2048)), "");
  EXPECT_EQ(error(masked(2049)), "sequence 0: more pairs than kMaxPairs");
  EXPECT_EQ(error(with_keys(2048, 2049)), "sequence 0: more pairs than kMaxPairs");
  limits.max_seq_len = 4;
  EXPECT_EQ(error(with_keys(3, 5)), "sequence 0: 5 tokens; max_seq_len is 4");
}

TEST(TextRulesTest, InputsThatAreAlikeShareARunOfTheNetwork) {
  const std::vector<EncoderInput> inputs = {
      {.vectors = {1, 2}, .image_width = 2}, {{7}},    {.vectors = {1, 2}, .image_width = 1},
      {.vectors = {3}, .image_width = 1},    {{8, 9}}, {.vectors = {1, 2}, .image_width = 2}};
  const std::vector<EncoderPass> passes = PassesOf(inputs, 1);
  ASSERT_EQ(passes.size(), 3U);
  EXPECT_TRUE(passes[0].vectors);
  EXPECT_EQ(passes[0].image_width, 2);
  EXPECT_EQ(passes[0].sequences, (std::vector<size_t>{0, 5}));
  EXPECT_FALSE(passes[1].vectors);
  EXPECT_EQ(passes[1].sequences, (std::vector<size_t>{1, 4}));
  EXPECT_EQ(passes[2].image_width, 1);
  EXPECT_EQ(passes[2].sequences, (std::vector<size_t>{2, 3}));
}

TEST(TextRulesTest, ZeroInputsAreAcceptedByTheModel) {
  const auto ids = ZeroInputs({.max_batch_tokens = 9, .vocab_size = 2, .max_seq_len = 4}, 9);
  ASSERT_EQ(ids.size(), 3U);
  EXPECT_EQ(ids[0].text, std::vector<TokenId>(4));
  EXPECT_EQ(ids[2].text, std::vector<TokenId>(1));
  const TextLimits images = {
      .max_batch_rows = 1, .max_batch_tokens = 9, .width = 2, .max_image_width = 3};
  const auto zeros = ZeroInputs(images, 5);
  EXPECT_EQ(zeros[0].vectors.size(), 10U);
  EXPECT_TRUE(CheckTexts(images, zeros).ok());
}

}  // namespace
}  // namespace aft
