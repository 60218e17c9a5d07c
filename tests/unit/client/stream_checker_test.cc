#include "client/lib/stream_checker.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/proto_text.h"

namespace aft::client {
namespace {

struct Case {
  const char* broken;  // what is wrong with the stream; empty: nothing
  std::vector<const char*> events;
};

template <typename Response>
void Check(const std::vector<Case>& cases) {
  for (const auto& [broken, events] : cases) {
    SCOPED_TRACE(testing::PrintToString(events));
    StreamChecker checker;
    std::string found;
    for (size_t i = 0; i < events.size() && found.empty(); ++i) {
      found = checker.Take(FromText<Response>(events[i]));
    }
    EXPECT_EQ(found, broken);
    if (!found.empty()) continue;
    EXPECT_TRUE(checker.started());
    EXPECT_TRUE(checker.finished());
  }
}

TEST(StreamCheckerTest, FollowsGenerations) {
  constexpr char kOutside[] = "a token came outside Started and Finished";
  Check<v1::GenerateResponse>({
      {"",
       {"started {}", "delta { token_ids: [1, 2] }", "delta { first_index: 2 token_ids: 3 }",
        "finished {}"}},
      {"",
       {"started {}", "delta { text: 'held back' }", "", "delta { token_ids: 1 }", "finished {}"}},
      {"tokens 2 to 4 are lost",
       {"started {}", "delta { token_ids: [1, 2] }", "delta { first_index: 5 token_ids: 3 }"}},
      {"token 1 came twice",
       {"started {}", "delta { token_ids: [1, 2] }", "delta { first_index: 1 token_ids: 3 }"}},
      {kOutside, {"delta { token_ids: 1 }"}},
      {kOutside, {"started {}", "finished {}", "delta {}"}},
      {"Started came twice", {"started {}", "started {}"}},
      {"Finished came before Started or twice", {"finished {}"}},
      {"Finished came before Started or twice", {"started {}", "finished {}", "finished {}"}},
  });
}

TEST(StreamCheckerTest, FollowsEachSequenceByItself) {
  const auto follow = [](uint32_t sequences, const std::vector<const char*>& events) {
    StreamChecker checker;
    checker.ExpectSequences(sequences);
    std::string found;
    for (size_t i = 0; i < events.size() && found.empty(); ++i) {
      EXPECT_FALSE(checker.finished());
      found = checker.Take(FromText<v1::GenerateResponse>(events[i]));
    }
    if (!found.empty()) return found;
    return std::to_string(checker.received()) + (checker.finished() ? " finished" : " open");
  };
  constexpr char kZero[] = "delta { token_ids: [1, 2] }";
  constexpr char kOne[] = "sequence: 1 delta { token_ids: [1] }";
  constexpr char kMore[] = "sequence: 1 delta { first_index: 1 token_ids: [5] }";
  constexpr char kEnd[] = "sequence: 1 finished {}";
  EXPECT_EQ(follow(2, {"started {}", kOne, kZero, kMore, kEnd, "finished {}"}), "4 finished");
  EXPECT_EQ(follow(3, {"started {}", kOne, kZero, kMore, kEnd, "finished {}"}), "4 open");
  EXPECT_EQ(follow(2, {"started {}", kEnd, "finished {}"}), "0 finished");
  EXPECT_EQ(follow(1, {"started {}", kOne}), "there is no sequence 1");
  EXPECT_EQ(follow(0, {"started {}", "finished {}"}), "0 finished");
  EXPECT_EQ(follow(4'000'000'000, {"started {}", kOne}), "1 open");
  EXPECT_EQ(follow(2, {"started {}", kMore}), "tokens 0 to 0 are lost");
  EXPECT_EQ(follow(2, {"started {}", kOne, kOne}), "token 0 came twice");
  EXPECT_EQ(follow(2, {"started {}", kEnd, kOne}), "a token came outside Started and Finished");
  EXPECT_EQ(follow(2, {"started {}", kEnd, kEnd}), "Finished came before Started or twice");
  EXPECT_EQ(follow(2, {kEnd}), "Finished came before Started or twice");
}

TEST(StreamCheckerTest, FollowsScores) {
  constexpr char kFirst[] = "chunk { first_index: 1 token_ids: 98 logprobs {} }";
  Check<v1::ScoreResponse>({
      {"",
       {"started {}", "", kFirst, "chunk { first_index: 2 token_ids: 99 logprobs {} }",
        "finished {}"}},
      {"scores 1 to 2 are lost",
       {"started {}", kFirst, "chunk { first_index: 4 token_ids: 99 logprobs {} }"}},
      {"a chunk has not as many log-probabilities as tokens",
       {"started {}", "chunk { first_index: 1 token_ids: 98 }"}},
      {"a score came outside Started and Finished", {kFirst}},
      {"scores 0 to 0 are lost",
       {"started {}", "chunk { first_index: 2 token_ids: 1 logprobs {} }"}},
      {"score 0 came twice",
       {"started {}", "chunk { token_ids: 98 logprobs {} }",
        "chunk { first_index: 0 token_ids: 98 logprobs {} }"}},
  });
  // Of the rest of a text; behind another one its first token has a score too.
  for (const char* first : {"chunk { first_index: 5 token_ids: 98 logprobs {} }",
                            "chunk { first_index: 6 token_ids: 98 logprobs {} }"}) {
    StreamChecker checker(5);
    EXPECT_EQ(checker.Take(FromText<v1::ScoreResponse>("started {}")), "");
    EXPECT_EQ(checker.Take(FromText<v1::ScoreResponse>(first)), "");
    EXPECT_EQ(checker.received(), 6U);
    EXPECT_EQ(checker.Take(FromText<v1::ScoreResponse>(first)), "score 5 came twice");
  }
}

TEST(StreamCheckerTest, FollowsVectors) {
  constexpr char kStarted[] = "started { width: 2 }";
  constexpr char kFirst[] = "vectors { values: [1, 2] }";
  Check<v1::EncodeResponse>({
      {"", {kStarted, kFirst, "vectors { first_index: 1 values: [3, 4, 5, 6] }", "finished {}"}},
      {"vector 0 came twice", {kStarted, kFirst, kFirst}},
      {"a vector is cut", {kStarted, "vectors { values: [1, 2, 3] }"}},
      {"the vectors have no width", {"started {}"}},
      {"Vectors came before Started", {kFirst}},
      {"a vector came outside Started and Finished", {kStarted, "finished {}", kFirst}},
  });
}

}  // namespace
}  // namespace aft::client
