#include "server/engine/output_builder.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizers.h"
#include "tests/support/fake_tokenizer.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;

StopConditions Stop(int32_t max_tokens, std::vector<std::string> strings = {},
                    std::vector<TokenId> token_ids = {}) {
  return {max_tokens, std::move(strings), std::move(token_ids), false, false};
}

struct Output {
  std::vector<std::string> texts;  // one per delta
  std::vector<TokenId> ids;
  bool ended = false;
  Outcome outcome;
};

// Feeds tokens until the output ends.
Output Feed(const Tokenizer& tokenizer, StopConditions stop, const std::vector<TokenId>& tokens,
            int64_t prompt_tokens = 1, int64_t max_seq_len = 0) {
  OutputBuilder output(tokenizer, std::move(stop), prompt_tokens, max_seq_len);
  Output run;
  for (const TokenId id : tokens) {
    SampledToken token;
    token.id = id;
    TokenDelta delta;
    run.ended = output.Append(token, delta, run.outcome);
    EXPECT_EQ(delta.first_index, run.ids.size());
    for (const SampledToken& t : delta.tokens) run.ids.push_back(t.id);
    run.texts.push_back(delta.text);
    EXPECT_EQ(output.tokens(), run.ids.size());
    if (run.ended) break;
  }
  return run;
}

TEST(OutputBuilderTest, EndsAtMaxTokensAndNamesTheLimit) {
  const Output run = Feed(FakeTokenizer(), Stop(2), {'a', 'b', 'c'});
  EXPECT_TRUE(run.ended);
  EXPECT_EQ(run.outcome.reason, FinishReason::kLength);
  EXPECT_EQ(run.outcome.limit, "stop.max_tokens=2");
  EXPECT_THAT(run.texts, ElementsAre("a", "b"));
}

TEST(OutputBuilderTest, AStopStringCountsIfATokenAfterTheMinimumCompletesIt) {
  StopConditions stop = Stop(9, {"ab"});
  stop.min_tokens = 2;
  Output run = Feed(FakeTokenizer(), stop, {'a', 'b', 'a', 'b', 'c'});
  EXPECT_EQ(run.outcome.stop_string, "ab");
  EXPECT_THAT(run.ids, ElementsAre('a', 'b', 'a', 'b'));
  EXPECT_THAT(run.texts, ElementsAre("", "ab", "", ""));
  run = Feed(FakeTokenizer(), stop, {'x', 'a', 'b'});
  EXPECT_EQ(run.outcome.stop_string, "ab") << "it began before";
  EXPECT_THAT(run.ids, ElementsAre('x', 'a', 'b'));
}

TEST(OutputBuilderTest, EndsAtTheModelsLengthAndNamesIt) {
  const Output run = Feed(FakeTokenizer(), Stop(100), {'a', 'b', 'c', 'd'}, 7, 10);
  EXPECT_TRUE(run.ended);
  EXPECT_EQ(run.outcome.limit, "model max_seq_len=10");
  EXPECT_THAT(run.ids, ElementsAre('a', 'b', 'c'));
}

TEST(OutputBuilderTest, TheEndOfTextTokenIsNotPartOfTheOutput) {
  const Output run = Feed(FakeTokenizer(), Stop(9), {'a', FakeTokenizer::kEos});
  EXPECT_TRUE(run.ended);
  EXPECT_EQ(run.outcome.reason, FinishReason::kEos);
  EXPECT_EQ(run.outcome.end_token->id, FakeTokenizer::kEos);
  EXPECT_THAT(run.ids, ElementsAre('a'));
}

TEST(OutputBuilderTest, IgnoreEosMakesItAnOrdinaryToken) {
  StopConditions stop = Stop(3);
  stop.ignore_eos = true;
  const Output run = Feed(FakeTokenizer(), stop, {'a', FakeTokenizer::kEos, 'b'});
  EXPECT_EQ(run.outcome.reason, FinishReason::kLength);
  EXPECT_THAT(run.ids, ElementsAre('a', FakeTokenizer::kEos, 'b'));
  EXPECT_THAT(run.texts, ElementsAre("a", "", "b"));
}

TEST(OutputBuilderTest, AStopTokenIsNotPartOfTheOutput) {
  const Output run = Feed(FakeTokenizer(), Stop(9, {}, {'x', 'c'}), {'a', 'b', 'c'});
  EXPECT_TRUE(run.ended);
  EXPECT_EQ(run.outcome.reason, FinishReason::kStop);
  EXPECT_EQ(run.outcome.stop_token_id, 'c');
  EXPECT_EQ(run.outcome.end_token->id, 'c');
  EXPECT_THAT(run.ids, ElementsAre('a', 'b'));
}

TEST(OutputBuilderTest, AStopTokenThatIsTheEndOfTextCountsAsStop) {
  StopConditions stop = Stop(9, {}, {FakeTokenizer::kEos});
  stop.ignore_eos = true;
  EXPECT_EQ(Feed(FakeTokenizer(), stop, {FakeTokenizer::kEos}).outcome.reason, FinishReason::kStop);
}

TEST(OutputBuilderTest, AStopStringAcrossTokensCutsTheTextButNotTheIds) {
  const FakeTokenizer tokenizer({"one st", "op two"});
  const Output run = Feed(tokenizer, Stop(9, {"stop"}),
                          {FakeTokenizer::kFirstWord, FakeTokenizer::kFirstWord + 1});
  EXPECT_TRUE(run.ended);
  EXPECT_EQ(run.outcome.reason, FinishReason::kStop);
  EXPECT_EQ(run.outcome.stop_string, "stop");
  EXPECT_EQ(run.outcome.stop_token_id, -1);
  EXPECT_THAT(run.ids, ElementsAre(FakeTokenizer::kFirstWord, FakeTokenizer::kFirstWord + 1));
  EXPECT_THAT(run.texts, ElementsAre("one ", ""));
}

TEST(OutputBuilderTest, AStopStringInTheLastAllowedTokenIsAStop) {
  const Output run = Feed(FakeTokenizer(), Stop(2, {"ab"}), {'a', 'b'});
  EXPECT_EQ(run.outcome.reason, FinishReason::kStop);
  EXPECT_EQ(run.outcome.limit, "");
}

TEST(OutputBuilderTest, TheEndReleasesWhatWasHeldForAStopString) {
  const Output run = Feed(FakeTokenizer(), Stop(9, {"abc"}), {'a', 'b', FakeTokenizer::kEos});
  EXPECT_THAT(run.texts, ElementsAre("", "", "ab"));
}

TEST(OutputBuilderTest, TextIsValidUtf8WhateverTheModelWrites) {
  const Output run = Feed(FakeTokenizer(), Stop(6), {'a', 0xE2, 0x82, 0xAC, 0xFF, 0xC3});
  EXPECT_THAT(run.texts, ElementsAre("a", "", "", "€", "\xEF\xBF\xBD", "\xEF\xBF\xBD"));
}

TEST(OutputBuilderTest, CharactersThatWorldSplitsIntoTokensArriveWhole) {
  const auto world = LoadWorldTokenizer(std::string("model/tokenizer/world/") + kWorldFileName);
  ASSERT_TRUE(world.ok()) << world.status();
  std::vector<TokenId> ids = *(*world)->Encode("a😀中🚀!");
  ids.insert(ids.end(), {65535, 0, 'z'});  // one without text, and then the end of the text
  const Output run = Feed(**world, Stop(99), ids);
  EXPECT_THAT(run.texts, ElementsAre("a", "", "", "😀", "中", "", "", "🚀", "!", "", ""));
  EXPECT_EQ(run.outcome.reason, FinishReason::kEos);
}

TEST(OutputBuilderTest, AStopStringOfSeveralBytesIsFoundAcrossByteTokens) {
  StopConditions stop = Stop(9, {"€"});
  stop.include_stop_string = true;
  const Output run = Feed(FakeTokenizer(), stop, {'a', 0xE2, 0x82, 0xAC});
  EXPECT_EQ(run.outcome.stop_string, "€");
  EXPECT_THAT(run.texts, ElementsAre("a", "", "", "€"));
}

TEST(OutputBuilderTest, TokensBeyondTheTokenizersVocabularyStandForNothing) {
  const Output run = Feed(FakeTokenizer(), Stop(2), {'a', 5000});
  EXPECT_THAT(run.ids, ElementsAre('a', 5000));
  EXPECT_THAT(run.texts, ElementsAre("a", ""));
}

}  // namespace
}  // namespace aft::server
