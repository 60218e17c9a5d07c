#include "client/lib/stream_checker.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace aft::client {
namespace {

using testing::HasSubstr;

// What is wrong with a stream; empty: nothing.
template <typename Response>
std::string Check(const std::vector<Response>& events) {
  StreamChecker checker;
  for (const Response& event : events) {
    const std::string broken = checker.Take(event);
    if (!broken.empty()) return broken;
  }
  EXPECT_TRUE(checker.started());
  EXPECT_TRUE(checker.finished());
  return "";
}

TEST(StreamCheckerTest, WholeStreamsAreFine) {
  EXPECT_EQ(Check(TextScript({"ab", "c"}).events), "");
  EXPECT_EQ(Check(ScoreScript().score_events), "");
  EXPECT_EQ(Check(EncodeScript().encode_events), "");
}

TEST(StreamCheckerTest, EventsOfANewerServerAreFine) {
  auto events = ScoreScript().score_events;
  events.insert(events.begin() + 1, v1::ScoreResponse());
  EXPECT_EQ(Check(events), "");
}

TEST(StreamCheckerTest, NamesAGap) {
  auto scores = ScoreScript().score_events;
  scores[2].mutable_chunk()->set_first_index(4);
  EXPECT_EQ(Check(scores), "scores 1 to 2 are lost");
  auto vectors = EncodeScript().encode_events;
  vectors[2].mutable_vectors()->set_first_index(0);
  EXPECT_EQ(Check(vectors), "vector 0 came twice");
}

TEST(StreamCheckerTest, NamesAChunkWithoutItsLogprobs) {
  auto events = ScoreScript().score_events;
  events[1].mutable_chunk()->clear_logprobs();
  EXPECT_THAT(Check(events), HasSubstr("log-probabilities"));
}

TEST(StreamCheckerTest, NamesACutVectorAndAMissingWidth) {
  auto events = EncodeScript().encode_events;
  events[1].mutable_vectors()->add_values(7);
  EXPECT_EQ(Check(events), "a vector is cut");
  events = EncodeScript().encode_events;
  events[0].mutable_started()->clear_width();
  EXPECT_EQ(Check(events), "the vectors have no width");
}

TEST(StreamCheckerTest, NamesEventsOutOfOrder) {
  auto tokens = TextScript({"ab"}).events;
  tokens.emplace_back().mutable_delta();  // though it brings nothing
  EXPECT_EQ(Check(tokens), "a token came outside Started and Finished");
  auto scores = ScoreScript().score_events;
  scores.erase(scores.begin());
  EXPECT_EQ(Check(scores), "a score came outside Started and Finished");
  auto vectors = EncodeScript().encode_events;
  vectors.push_back(vectors.back());
  EXPECT_EQ(Check(vectors), "Finished came before Started or twice");
}

}  // namespace
}  // namespace aft::client
