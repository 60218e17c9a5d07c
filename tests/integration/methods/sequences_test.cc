// Several answers to one prompt over real gRPC, with a fake model.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/states/state_fixture.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/proto_text.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr uint32_t kEndless = 1'000'000;

v1::GenerateRequest Several(const std::string& prompt, uint32_t max_tokens, uint32_t n) {
  v1::GenerateRequest request = Request(prompt, max_tokens);
  request.set_n(n);
  return request;
}

v1::GenerateRequest Single(v1::GenerateRequest request, uint32_t sequence) {
  request.clear_n();
  request.mutable_sampling()->set_seed(request.sampling().seed() + sequence);
  return request;
}

// What came of one sequence.
struct Answer {
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<std::string> logprobs;
  v1::Finished finished;
};

std::map<uint32_t, Answer> AnswersOf(const GenerateStream& stream) {
  std::map<uint32_t, Answer> answers;
  for (const v1::GenerateResponse& event : stream.events) {
    if (event.has_started()) continue;
    Answer& answer = answers[event.sequence()];
    const v1::Delta& delta = event.delta();
    answer.tokens.insert(answer.tokens.end(), delta.token_ids().begin(), delta.token_ids().end());
    answer.text += delta.text();
    for (const auto& token : delta.logprobs()) answer.logprobs.push_back(token.ShortDebugString());
    if (event.has_finished()) answer.finished = event.finished();
  }
  return answers;
}

class SequencesTest : public StateTest {
 protected:
  void WaitUntilIdle() {
    server_->WaitForMetric(R"(aft_slots_used{model="fake"})", 0);
    server_->WaitForMetric("aft_memory_used_bytes", 0);
    EXPECT_EQ(server_->Metric(R"(aft_requests_running{model="fake"})"), 0);
    EXPECT_EQ(server_->Metric(R"(aft_requests_waiting{model="fake"})"), 0);
  }
};

TEST_F(SequencesTest, EachIsWhatASingleRequestWithItsSeedGives) {
  Start();
  v1::GenerateRequest request = Several("a prompt", 12, 4);
  request.mutable_output()->set_top_logprobs(2);
  request.mutable_sampling()->set_frequency_penalty(0.5);
  const GenerateStream stream = Run(request);
  EXPECT_EQ(stream.started.seed(), 7U);
  EXPECT_EQ(stream.started.prompt_tokens(), 8U);
  std::map<uint32_t, Answer> answers = AnswersOf(stream);
  ASSERT_THAT(answers, SizeIs(4));
  uint32_t prompt_tokens = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const GenerateStream single = Run(Single(request, i));
    Answer expected = AnswersOf(single)[0];
    EXPECT_EQ(answers[i].tokens, expected.tokens);
    EXPECT_EQ(answers[i].text, expected.text);
    EXPECT_EQ(answers[i].logprobs, expected.logprobs);
    EXPECT_EQ(answers[i].finished.reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(answers[i].finished.limit(), "stop.max_tokens=12");
    EXPECT_EQ(answers[i].finished.usage().generated_tokens(), 12U);
    prompt_tokens += answers[i].finished.usage().prompt_tokens();
  }
  EXPECT_EQ(prompt_tokens, 8U);
  EXPECT_EQ(answers[0].finished.usage().prompt_tokens(), 8U);
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "Generate")), 1 + 4);
  // Read once, and the last token three times more; then the four others.
  EXPECT_EQ(server_->Metric(R"(aft_prompt_tokens_total{model="fake"})"), 8 + 3 + 4 * 8);
  EXPECT_EQ(server_->Metric(R"(aft_generated_tokens_total{model="fake"})"), 8 * 12);
  EXPECT_EQ(server_->Metric(R"(aft_client_tokens_total{client="other"})"), 8 + 3 + 4 * 8 + 8 * 12);
}

TEST_F(SequencesTest, EachStopsByItself) {
  Start();
  v1::GenerateRequest request = Several("a prompt", 200, 4);
  const std::vector<TokenId> second = Expected(Single(request, 1));
  request.mutable_stop()->add_token_ids(static_cast<uint32_t>(second[3]));
  std::map<uint32_t, Answer> answers = AnswersOf(Run(request));
  for (uint32_t i = 0; i < 4; ++i) {
    Answer expected = AnswersOf(Run(Single(request, i)))[0];
    EXPECT_EQ(answers[i].tokens, expected.tokens);
    EXPECT_EQ(answers[i].finished.reason(), expected.finished.reason());
    EXPECT_EQ(answers[i].finished.stop_token_id(), expected.finished.stop_token_id());
  }
  EXPECT_LE(answers[1].tokens.size(), 3U);
}

TEST_F(SequencesTest, AModelThatCannotRunThemAllRefuses) {
  Start();
  for (const auto& [n, what] :
       std::map<uint32_t, std::string>{{0, "n: must be in [1, 16], got 0"},
                                       {17, "n: must be in [1, 16], got 17"},
                                       {5, "n: must be at most 4"}}) {
    EXPECT_THAT(Refused(Several("a", 1, n)),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(what)));
  }
  v1::GenerateRequest stored = Several("a", 1, 5);
  stored.mutable_store();
  EXPECT_THAT(Refused(stored), StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("n: ")));
  EXPECT_EQ(server_->Metric(R"(aft_rejected_total{model="fake",reason="invalid"})"), 4);
  EXPECT_EQ(Run(Several("a", 3, 1)).tokens, Expected(Request("a", 3)));
  EXPECT_EQ(server_->control().step_count(), 3);
}

TEST_F(SequencesTest, EachLeavesAStateOfItsOwn) {
  Start();
  v1::GenerateRequest request = Several("hello", 6, 3);
  request.mutable_store();
  std::map<uint32_t, Answer> answers = AnswersOf(Run(request));
  EXPECT_EQ(server_->Metric("aft_states"), 3);
  for (uint32_t i = 0; i < 3; ++i) {
    const v1::State& state = answers[i].finished.state();
    const v1::State expected = Run(Single(request, i)).finished.state();
    EXPECT_EQ(state.history(), expected.history());
    EXPECT_EQ(state.tokens(), 11U);
    // Several go on from it, with new text and without.
    for (const char* more : {" you", ""}) {
      v1::GenerateRequest next = Several(more, 4, 2);
      next.mutable_previous()->set_state_id(state.id());
      std::map<uint32_t, Answer> both = AnswersOf(Run(next));
      for (uint32_t j = 0; j < 2; ++j) {
        EXPECT_EQ(both[j].tokens, Run(Single(next, j)).tokens);
      }
    }
  }
}

TEST_F(SequencesTest, StatesOfAllHavePlacesBeforeAnyWork) {
  config_.states.max_bytes = 12'000;  // half of it for one client
  Start();
  v1::GenerateRequest request = Several("hello", 6, 4);
  request.mutable_store();
  int refused = 0;
  for (int i = 0; i < 6; ++i) {
    GenerateStream stream(server_->inference(), request);
    const grpc::Status status = stream.Finish();
    if (status.ok()) {
      EXPECT_THAT(AnswersOf(stream), SizeIs(4));
      continue;
    }
    ++refused;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("states")));
    EXPECT_THAT(stream.events, IsEmpty());
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 6);
  EXPECT_EQ(server_->Metric("aft_states"), 4 * (6 - refused));
}

TEST_F(SequencesTest, OneThatFailsEndsTheCall) {
  options_.not_finite = [](uint64_t seed, uint64_t index) { return seed == 9 && index == 3; };
  Start();
  v1::GenerateRequest request = Several("hello", kEndless, 4);
  GenerateStream stream(server_->inference(), request);
  EXPECT_THAT(stream.Finish(), StatusIs(absl::StatusCode::kInternal, HasSubstr("internal error")));
  for (const auto& [sequence, answer] : AnswersOf(stream)) {
    const std::vector<TokenId> expected = Expected(Single(Several("hello", 50, 4), sequence));
    const size_t common = std::min(answer.tokens.size(), expected.size());
    EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(common),
                           answer.tokens.begin()));
  }
  v1::Usage usage;
  ASSERT_TRUE(usage.ParseFromString(stream.TrailingMetadata("aft-usage-bin")));
  EXPECT_EQ(usage.prompt_tokens(), 5U);
  EXPECT_GE(usage.generated_tokens(), 4U * 3U);
  WaitUntilIdle();
  EXPECT_EQ(server_->Metric(RequestsTotal("INTERNAL", "Generate")), 1);
  // States of those that had ended before are gone, unless the client was told of them.
  request = Several("hello", 4, 3);
  request.mutable_store();
  GenerateStream stored(server_->inference(), request);
  EXPECT_THAT(stored.Finish(), StatusIs(absl::StatusCode::kInternal, HasSubstr("internal error")));
  double told = 0;
  for (const auto& [sequence, answer] : AnswersOf(stored)) {
    if (answer.finished.has_state()) ++told;
  }
  server_->WaitForMetric("aft_states", told);
}

TEST_F(SequencesTest, ADrainRefusesThoseThatWaitAndLetsOthersFinish) {
  config_.drain.grace = std::chrono::hours(1);
  Start();
  server_->control().Hold();
  const v1::GenerateRequest request = Several("running", 20'000, 4);
  GenerateStream running(server_->inference(), request);
  server_->control().RunSteps(3);
  GenerateStream waiting(server_->inference(), Several("waiting", 30, 2));
  while (server_->Metric(R"(aft_requests_waiting{model="fake"})") != 2) {
    server_->control().AllowSteps(1);
  }
  std::thread drain([this] { EXPECT_TRUE(server_->server().Drain()); });
  server_->WaitForMetric("aft_draining", 1);
  std::atomic<bool> released = false;
  std::thread steps([&] {  // token by token, the drain comes at any of them
    while (!released) server_->control().AllowSteps(1);
  });
  EXPECT_EQ(waiting.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(waiting.events, IsEmpty());
  EXPECT_NE(waiting.TrailingMetadata("x-request-id"), "");
  released = true;
  steps.join();
  server_->control().Resume();
  EXPECT_TRUE(running.Finish().ok());
  std::map<uint32_t, Answer> answers = AnswersOf(running);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(answers[i].tokens, Expected(Single(request, i)));
  drain.join();
}

TEST_F(SequencesTest, AFailedStepEndsTheCall) {
  Start();
  GenerateStream stream(server_->inference(), Several("hello", kEndless, 4));
  ASSERT_TRUE(stream.ReadUntil(v1::GenerateResponse::kDelta));
  server_->control().FailNextCollect(absl::InternalError("a step"));
  EXPECT_THAT(stream.Finish(), StatusIs(absl::StatusCode::kInternal, HasSubstr("internal error")));
  WaitUntilIdle();
  // While the prompt is read, too.
  server_->control().FailNextSubmit(absl::InternalError("a step"));
  GenerateStream reading(server_->inference(), Several("hello", 5, 4));
  EXPECT_THAT(reading.Finish(), StatusIs(absl::StatusCode::kInternal, HasSubstr("internal error")));
  WaitUntilIdle();
}

TEST_F(SequencesTest, EachIsChargedForWhatItHolds) {
  constexpr int kCall = 16 << 10;
  config_.limits.max_memory_bytes = config_.limits.max_client_memory_bytes = 3 * kCall;
  Start();
  GenerateStream refused(server_->inference(), Several("hello", 5, 4));
  EXPECT_TRUE(refused.Finish().ok());                  // 16 KiB and three times 8
  server_->WaitForMetric("aft_memory_used_bytes", 0);  // it has been given back
  server_->control().Hold();
  GenerateStream stream(server_->inference(), Several("hello", 5, 4));
  server_->WaitForMetric("aft_memory_used_bytes", kCall + 3 * 8192 + 5 * 4);
  GenerateStream second(server_->inference(), Several("hi", 5, 2));
  EXPECT_THAT(second.Finish(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_memory_bytes")));
  server_->control().Resume();
  EXPECT_TRUE(stream.Finish().ok());
  WaitUntilIdle();
}

TEST_F(SequencesTest, TheQueueHasAPlaceForEach) {
  config_.limits.max_queued_requests = 4;
  config_.scheduling.max_client_queued_requests = 4;
  Start();
  server_->control().Hold();
  GenerateStream running(server_->inference(), Several("running", 5, 4));
  server_->control().WaitUntilBlocked();
  GenerateStream waiting(server_->inference(), Several("waiting", 5, 3));
  server_->WaitForMetric(R"(aft_requests_waiting{model="fake"})", 3);
  EXPECT_THAT(Refused(Several("too many", 5, 2)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_requests=4")));
  GenerateStream last(server_->inference(), Request("last", 5));
  server_->WaitForMetric(R"(aft_requests_waiting{model="fake"})", 4);
  server_->control().Resume();
  for (GenerateStream* stream : {&running, &waiting, &last}) EXPECT_TRUE(stream->Finish().ok());
  WaitUntilIdle();
}

}  // namespace
}  // namespace aft::server
