// Several answers to one prompt over real gRPC, with a fake model.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/states/state_fixture.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

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

// The answer of one sequence.
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

TEST_F(SequencesTest, EachEqualsASingleRequestWithItsSeed) {
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
  // The group reads the prompt once, and its last token three more times. Each of the four single
  // requests reads the whole prompt.
  EXPECT_EQ(server_->Metric(R"(aft_prompt_tokens_total{model="fake"})"), 8 + 3 + 4 * 8);
  EXPECT_EQ(server_->Metric(R"(aft_generated_tokens_total{model="fake"})"), 8 * 12);
  EXPECT_EQ(server_->Metric(R"(aft_client_tokens_total{client="other"})"), 8 + 3 + 4 * 8 + 8 * 12);
}

TEST_F(SequencesTest, MoreSequencesThanSlotsAreRefused) {
  Start();
  v1::GenerateRequest request = Several("a", 1, 5);
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("n: must be at most 4"));
  EXPECT_THAT(Refused(request), refused);
  request.mutable_store();
  EXPECT_THAT(Refused(request), refused);
  EXPECT_EQ(server_->Metric(R"(aft_rejected_total{model="fake",reason="invalid"})"), 2);
  EXPECT_EQ(Run(Several("a", 3, 1)).tokens, Expected(Request("a", 3)));
  EXPECT_EQ(server_->control().step_count(), 3);
}

TEST_F(SequencesTest, SpaceForAllStatesIsReservedBeforeAnyWork) {
  config_.states.max_bytes = 12'000;  // one client gets half of it
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

TEST_F(SequencesTest, AFailedSequenceEndsTheCall) {
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
  // States of sequences that ended before the failure are deleted, unless the client was told of
  // them.
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

TEST_F(SequencesTest, EachSequenceIsChargedForItsMemory) {
  config_.limits.max_memory_bytes = config_.limits.max_client_memory_bytes = 3 * kCall;
  Start();
  GenerateStream refused(server_->inference(), Several("hello", 5, 4));
  EXPECT_TRUE(refused.Finish().ok());  // 16 KiB and three times 8 KiB
  server_->WaitForMetric("aft_memory_used_bytes", 0);
  // With a prompt of 12 kB of tokens, four sequences can never fit.
  GenerateStream never(server_->inference(), Several(std::string(3000, 'x'), 5, 4));
  EXPECT_THAT(never.Finish(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_memory_bytes")));
  server_->WaitForMetric("aft_memory_used_bytes", 0);
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

}  // namespace
}  // namespace aft::server
