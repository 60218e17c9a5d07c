// Calls of several texts: what only Score does, and what only Encode does.
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/methods/texts_fixture.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

using ScoreTextsTest = TextsTest<ScoreMethod>;

TEST_F(ScoreTextsTest, AllContinueFromOneStateAndEachStoresOne) {
  Start();
  v1::GenerateRequest context = aft::server::Request("a context", 4);
  context.set_model("fake");
  context.mutable_store();
  GenerateStream before(server_->inference(), context);
  ASSERT_TRUE(before.Finish().ok());
  ScoreMethod::Request request = Several({"yes", "no", "perhaps"});
  request.mutable_previous()->set_state_id(before.finished.state().id());
  request.mutable_store();
  request.mutable_output()->set_top_logprobs(2);
  const ScoreStream stream = Run(request);
  EXPECT_EQ(server_->Metric("aft_states"), 4);
  size_t stored = 0;
  for (const v1::ScoreResponse& event : stream.events) {
    if (!event.has_finished()) continue;
    const v1::ScoreFinished& finished = event.finished();
    ScoreMethod::Request single = request;
    single.set_text(request.texts(static_cast<int>(event.index())).text());
    single.clear_texts();
    const ScoreStream alone = Run(single);
    const v1::ScoreFinished& expected = alone.events.back().finished();
    EXPECT_EQ(finished.logprob(), expected.logprob());
    EXPECT_EQ(finished.scored_tokens(), single.text().size());  // after a pending token
    EXPECT_EQ(finished.state().history(), expected.state().history());
    EXPECT_EQ(finished.state().tokens(), before.finished.state().tokens() + single.text().size());
    ++stored;
    // A generation can continue from the state.
    v1::GenerateRequest next = aft::server::Request("", 2);
    next.set_model("fake");
    next.mutable_previous()->set_state_id(finished.state().id());
    EXPECT_TRUE(GenerateStream(server_->inference(), next).Finish().ok());
  }
  EXPECT_EQ(stored, 3U);
}

TEST_F(ScoreTextsTest, ATextTooLongForTheStateIsNamed) {
  options_.max_seq_len = 20;
  Start();
  v1::GenerateRequest context = aft::server::Request("a context", 4);
  context.mutable_store();
  GenerateStream before(server_->inference(), context);
  ASSERT_TRUE(before.Finish().ok());
  ScoreMethod::Request request = Several({"seven b", "eight by"});
  request.mutable_previous()->set_state_id(before.finished.state().id());
  EXPECT_THAT(Refused(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "texts[1]: 13 tokens before and 8 exceed the model's max_seq_len=20"));
  server_->WaitForMetric(kMemoryUsed, 0);
  request.mutable_texts()->RemoveLast();
  Run(request);
}

TEST_F(ScoreTextsTest, SpaceForAllStatesIsReservedBeforeAnyWork) {
  config_.states.max_bytes = 10'000;  // one client gets half of it
  Start();
  ScoreMethod::Request request = Several(8, 10);
  request.mutable_store();
  EXPECT_THAT(Refused(request),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("states")));
  EXPECT_EQ(server_->Metric("aft_states"), 0);
  EXPECT_EQ(server_->control().step_count(), 0);
  WaitUntilIdle();
}

TEST_F(ScoreTextsTest, CannotBeResumedOnlyRetried) {
  Start();
  ScoreMethod::Request request = Several(2, 10);
  request.mutable_resume();
  EXPECT_THAT(Refused(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("resume: must not be set together with texts")));
  request.clear_resume();
  request.set_resumable(true);
  EXPECT_FALSE(Run(request).events.front().started().exact());
}

TEST_F(ScoreTextsTest, ADrainEndsACallWhoseClientCanRetry) {
  Start();
  server_->control().Hold();
  ScoreMethod::Request request = Several(6, 100);
  request.set_resumable(true);
  ScoreStream stream = Open(request);
  ASSERT_TRUE(stream.Next());
  server_->control().WaitUntilBlocked();
  std::thread drain([this] { EXPECT_TRUE(server_->server().Drain()); });
  server_->WaitForMetric("aft_model_state{model=\"fake\",state=\"draining\"}", 1);
  server_->control().Resume();
  EXPECT_EQ(stream.Finish().error_code(), grpc::UNAVAILABLE);
  drain.join();
}

using EncodeTextsTest = TextsTest<EncodeMethod>;

// The vectors of a batch of four texts take 700 KB, and those of all texts 2.8 MB.
TEST_F(EncodeTextsTest, ASlowReaderGetsAllVectors) {
  config_.limits.max_queued_requests = config_.scheduling.max_client_queued_requests = 16;
  config_.limits.write_stall = std::chrono::hours(1);
  encoder_options_.width = 700;
  Start();
  const auto stub = server_->StubWithASmallWindow();
  EncodeStream stream(*stub, Several(16, 64));
  server_->WaitForMetric("aft_encoded_tokens_total{model=\"encoder\"}", 16 * 64);
  EXPECT_THAT(server_->Metric(kMemoryUsed), Gt(2'500'000));
  const grpc::Status status = stream.Finish();  // only now the client reads
  ASSERT_TRUE(status.ok()) << status.error_message();
  const std::vector<Answer> answers = AnswersOf(stream, 16);
  for (const Answer& answer : answers) EXPECT_THAT(answer.parts, SizeIs(64 * 700));
  server_->WaitForMetric(kMemoryUsed, 0);
}

TEST_F(EncodeTextsTest, TheWholeAnswerIsChargedBeforeAnyWork) {
  encoder_options_.width = 1000;
  constexpr int kTexts = kCall + 3 * 8192 + 4 * 10 * 4;
  constexpr int kVectors = 4 * 10 * 1000 * 4;
  config_.limits.max_memory_bytes = config_.limits.max_client_memory_bytes = kTexts + kVectors;
  Start();
  server_->encoder_control().Hold();
  EncodeStream stream = Open(Several(4, 10));
  server_->WaitForMetric(kMemoryUsed, kTexts + kVectors);
  EXPECT_THAT(Refused(Single("x")),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_memory_bytes")));
  server_->encoder_control().Resume();
  EXPECT_TRUE(stream.Finish().ok());
  server_->WaitForMetric(kMemoryUsed, 0);
  EXPECT_THAT(Refused(Several(5, 10)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("texts: they and their answers would take ")));
  EncodeMethod::Request pooled = Several(5, 10);  // one vector for each text
  pooled.set_pooling(v1::POOLING_MEAN);
  EXPECT_THAT(AnswersOf(Run(pooled), 5)[4].parts, SizeIs(1000));
}

}  // namespace
}  // namespace aft::server
