// Several texts in one call of Score or Encode over real gRPC, with fake models.
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/methods/texts_fixture.h"
#include "tests/support/proto_text.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::SizeIs;
using ::testing::StartsWith;

using Methods = testing::Types<ScoreMethod, EncodeMethod, HiddenMethod>;
TYPED_TEST_SUITE(TextsTest, Methods);

TYPED_TEST(TextsTest, EachTextEqualsACallOfItsOwn) {
  this->Start();
  const std::vector<size_t> sizes = {1, 40, 64, 2, 63, 17, 64, 5};
  typename TypeParam::Request request;
  request.set_model(TypeParam::kModel);
  std::vector<std::string> texts;
  for (size_t i = 0; i < sizes.size(); ++i) {
    texts.push_back(Text(sizes[i], i));
    v1::Text& text = *request.add_texts();
    if (i % 3 == 0) text.set_text(texts[i]);
    if (i % 3 == 1) text.set_raw(texts[i]);
    for (size_t at = 0; i % 3 == 2 && at < sizes[i]; ++at) {
      text.mutable_tokens()->add_ids(static_cast<uint32_t>(texts[i][at]));
    }
  }
  const auto stream = this->Run(request);
  const auto& started = stream.events.front().started();
  EXPECT_EQ(started.model(), TypeParam::kModel);
  EXPECT_EQ(started.tokens(), 256U);
  EXPECT_THAT(std::vector<size_t>(started.text_tokens().begin(), started.text_tokens().end()),
              ElementsAreArray(sizes));
  const std::vector<Answer> answers = this->AnswersOf(stream, sizes.size());
  this->ExpectCalls("OK", 1);
  // A text of one token has no score, but a step reads it.
  const char* const read = TypeParam::kModel == std::string("encoder") ? "aft_encoded_tokens_total"
                                                                       : "aft_prompt_tokens_total";
  EXPECT_EQ(this->server_->Metric(read), 256);
  EXPECT_EQ(this->server_->Metric("aft_client_tokens_total{client=\"other\"}"), 256);
  EXPECT_EQ(this->server_->Metric("aft_client_requests_total{client=\"other\",result=\"ok\"}"), 1);
  EXPECT_EQ(this->server_->Metric(absl::StrCat("aft_request_finished_total{model=\"",
                                               TypeParam::kModel, "\",reason=\"done\"}")),
            8);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto single = this->Run(this->Single(texts[i]));
    EXPECT_THAT(single.events.front().started().text_tokens(), IsEmpty());
    EXPECT_EQ(answers[i], this->AnswersOf(single)[0]) << i;
  }
  this->WaitUntilIdle();
}

TYPED_TEST(TextsTest, AListOfOneTextEqualsASingleText) {
  this->Start();
  const auto stream = this->Run(this->Several(1, 30));
  EXPECT_THAT(stream.events.front().started().text_tokens(), SizeIs(1));
  EXPECT_EQ(this->AnswersOf(stream), this->AnswersOf(this->Run(this->Single(Text(30)))));
}

TYPED_TEST(TextsTest, ABadTextIsNamedAndRefusesAll) {
  this->config_.limits.max_texts = 6;
  this->config_.limits.max_prompt_bytes = 60;
  this->config_.limits.max_prompt_tokens = 50;
  this->Start();
  const struct {
    const char* request;
    const char* message;
  } cases[] = {
      {"texts { text: 'a' } texts { text: '' }", "texts[1].text: must not be empty"},
      {"texts { text: 'a' } texts {}", "texts[1]: one of text, raw, tokens must be set"},
      {"texts { tokens {} }", "texts[0].tokens.ids: must not be empty"},
      {"texts { raw: 'a' } texts { tokens { ids: [1, 300] } }",
       "texts[1].tokens.ids[1]: must be below 257, the size of the vocabulary, got 300"},
      {"text: 'a' texts { text: 'a' }", "texts: must not be set together with text"},
      {"raw: '' texts { text: 'a' }", "texts: must not be set together with raw"},
      {"tokens {} texts { text: 'a' }", "texts: must not be set together with tokens"},
      {"texts {} texts {} texts {} texts {} texts {} texts {} texts {}",
       "texts: must have at most 6 entries (limits.max_texts), got 7"},
  };
  for (const auto& bad : cases) {
    auto request = FromText<typename TypeParam::Request>(bad.request);
    request.set_model(TypeParam::kModel);
    EXPECT_THAT(this->Refused(request), StatusIs(absl::StatusCode::kInvalidArgument, bad.message));
  }
  EXPECT_THAT(this->Refused(this->Several({Text(30), Text(31)})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "texts: must have at most 60 bytes together, got 61"));
  EXPECT_THAT(this->Refused(this->Several({Text(30), Text(20), Text(1)})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "texts: must have at most 50 tokens together, more by texts[2]"));
  EXPECT_EQ(this->server_->Metric(absl::StrCat("aft_rejected_total{model=\"", TypeParam::kModel,
                                               "\",reason=\"invalid\"}")),
            10);
  this->server_->WaitForMetric(kMemoryUsed, 0);
  EXPECT_EQ(this->Metric("aft_step_rows_count"), 0);
  this->Run(this->Several({Text(30), Text(20)}));
}

TYPED_TEST(TextsTest, CountTogetherAgainstTheClientsQueuedTokens) {
  this->config_.limits.max_prompt_tokens = this->config_.limits.max_queued_tokens = 100;
  this->Start();
  EXPECT_THAT(this->Refused(this->Several(3, 17)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "texts: must have at most 50 tokens together, more by texts[2]"));
  this->Run(this->Several(8, 6));
  this->Run(this->Several(1, 51));  // a single text may wait
}

TYPED_TEST(TextsTest, AQueueWithSpaceForAPartAcceptsNone) {
  this->Start();
  this->gate().Hold();
  auto running = this->Open(this->Several(3, 10));  // three of four slots, or a part of a batch
  ASSERT_TRUE(running.Next());
  this->gate().WaitUntilBlocked();
  const double held = this->server_->Metric(kMemoryUsed);
  auto refused = this->Open(this->Several(6, 10));
  EXPECT_THAT(refused.Finish(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_requests=4")));
  EXPECT_THAT(refused.events, IsEmpty());
  int hint_ms = 0;
  EXPECT_TRUE(absl::SimpleAtoi(refused.TrailingMetadata("grpc-retry-pushback-ms"), &hint_ms));
  EXPECT_GE(hint_ms, 100);
  this->server_->WaitForMetric(kMemoryUsed, held);
  EXPECT_EQ(this->Metric("aft_requests_waiting"), 0);
  auto waiting = this->Open(this->Several(5, 10));  // takes the fourth slot and the whole queue
  this->WaitFor("aft_requests_waiting", 5);
  EXPECT_THAT(this->Refused(this->Single("x")),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_requests=4")));
  this->gate().Resume();
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_TRUE(waiting.Finish().ok());
  this->ExpectCalls("RESOURCE_EXHAUSTED", 2);
  this->WaitUntilIdle();
  // A retry makes no sense for a call that can never fit.
  EXPECT_THAT(this->Refused(this->Several(9, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("texts: needs 9 places")));
}

TYPED_TEST(TextsTest, ShareStepsWithOneAnotherAndWithOtherCalls) {
  this->Start();
  this->gate().Hold();
  auto first = this->Open(this->Single(Text(20)));
  ASSERT_TRUE(first.Next());
  this->gate().WaitUntilBlocked();
  auto three = this->Open(this->Several(3, 16));
  this->WaitFor("aft_requests_waiting", 3);
  auto other = this->Open(this->Single(Text(16)));
  this->WaitFor("aft_requests_waiting", 4);
  this->gate().Resume();
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(three.Finish().ok());
  EXPECT_TRUE(other.Finish().ok());
  EXPECT_EQ(this->Metric("aft_step_rows_sum"), 5);
  EXPECT_EQ(this->Metric("aft_step_rows_count"), 2);
}

TYPED_TEST(TextsTest, ACancellationHalfWayEndsAll) {
  this->TakeMany();
  this->Start();
  this->gate().Hold();
  auto stream = this->Open(this->Several(kMany, 3));  // four in each step
  this->gate().RunSteps(1);
  ASSERT_TRUE(stream.ReadUntil(TypeParam::Response::kFinished));
  stream.context().TryCancel();
  this->StepUntilCalls("CANCELLED");
  EXPECT_EQ(stream.Finish().error_code(), grpc::CANCELLED);
  // Only texts that were read count.
  const double tokens = this->server_->Metric("aft_client_tokens_total{client=\"other\"}");
  EXPECT_THAT(tokens, AllOf(Ge(4 * 3), Lt(kMany * 3)));
  this->WaitUntilIdle();
}

TYPED_TEST(TextsTest, ADrainFinishesABegunCallAndEndsAWaitingOne) {
  this->Start();
  this->gate().Hold();
  auto running = this->Open(this->Several(6, 16));  // two of them wait
  ASSERT_TRUE(running.Next());
  this->gate().WaitUntilBlocked();
  this->WaitFor("aft_requests_waiting", 2);
  auto waiting = this->Open(this->Several(2, 16));
  this->WaitFor("aft_requests_waiting", 4);
  std::thread drain([this] { EXPECT_TRUE(this->server_->server().Drain()); });
  this->server_->WaitForMetric(
      absl::StrCat("aft_model_state{model=\"", TypeParam::kModel, "\",state=\"draining\"}"), 1);
  this->gate().Resume();
  EXPECT_EQ(waiting.Finish().error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(waiting.events, IsEmpty());
  const grpc::Status status = running.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  drain.join();
}

TYPED_TEST(TextsTest, AFailedTextIsNamedAndEndsTheCall) {
  this->encoder_options_.nan_token = 'Z';
  this->options_.next_token = [](uint64_t hash, int64_t) {
    const uint64_t bad = FakeModelRunner::Consume(FakeModelRunner::kEmptyHash, 'Z', 0);
    return hash == bad ? kNoToken : TokenId{'x'};
  };
  this->TakeMany();
  this->Start();
  this->gate().Hold();
  std::vector<std::string> texts(kMany, "abc");
  texts[2] = "Zzz";
  auto stream = this->Open(this->Several(texts));
  this->StepUntilCalls("INTERNAL");
  EXPECT_THAT(stream.Finish(), StatusIs(absl::StatusCode::kInternal,
                                        StartsWith("texts[2]: internal error; request id ")));
  this->ExpectCalls("INTERNAL", 1);
  // Texts that still waited are not read.
  EXPECT_LT(this->server_->Metric("aft_client_tokens_total{client=\"other\"}"), kMany * 3);
  this->WaitUntilIdle();
}

}  // namespace
}  // namespace aft::server
