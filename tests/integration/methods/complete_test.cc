// Complete and the options for single tokens over real gRPC, with a fake model.
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/states/state_fixture.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr uint32_t kEndless = 1'000'000;

class CompleteTest : public StateTest {
 protected:
  // One call, with what came of it.
  struct Completed {
    grpc::Status status;
    v1::CompleteResponse response;
    std::string id;        // x-request-id, wherever it came
    std::string pushback;  // "" where there was none
    bool usage = false;    // in the trailers
  };
  Completed Complete(const v1::GenerateRequest& request, const Prepare& prepare = {}) {
    grpc::ClientContext context;
    if (prepare) prepare(context);
    Completed completed;
    completed.status = server_->inference().Complete(&context, request, &completed.response);
    const auto find = [](const auto& metadata, const char* key) {
      const auto found = metadata.find(key);
      return found == metadata.end() ? std::string()
                                     : std::string(found->second.data(), found->second.size());
    };
    completed.id = find(context.GetServerInitialMetadata(), "x-request-id") +
                   find(context.GetServerTrailingMetadata(), "x-request-id");
    completed.pushback = find(context.GetServerTrailingMetadata(), "grpc-retry-pushback-ms");
    completed.usage = context.GetServerTrailingMetadata().count("aft-usage-bin") > 0;
    return completed;
  }
  v1::CompleteResponse Answered(const v1::GenerateRequest& request) {
    Completed completed = Complete(request);
    EXPECT_TRUE(completed.status.ok()) << completed.status.error_message();
    return std::move(completed.response);
  }
  static std::vector<TokenId> IdsOf(const v1::Answer& answer) {
    return {answer.token_ids().begin(), answer.token_ids().end()};
  }
  void WaitUntilIdle() {
    server_->WaitForMetric(R"(aft_slots_used{model="fake"})", 0);
    server_->WaitForMetric("aft_memory_used_bytes", 0);
    ExpectServes(*server_);
  }
};

TEST_F(CompleteTest, IsWhatTheStreamSays) {
  Start();
  v1::GenerateRequest request = Request("a prompt", 12);
  request.mutable_output()->set_top_logprobs(2);
  request.mutable_output()->set_echo(true);
  const Completed completed = Complete(
      request, [](grpc::ClientContext& context) { context.AddMetadata("x-request-id", "mine"); });
  ASSERT_TRUE(completed.status.ok()) << completed.status.error_message();
  EXPECT_EQ(completed.id, "mine");
  const GenerateStream stream = Run(request);
  const v1::CompleteResponse& response = completed.response;
  EXPECT_EQ(response.started().ShortDebugString(), stream.started.ShortDebugString());
  EXPECT_EQ(response.started().prompt().text(), "a prompt");
  EXPECT_THAT(response.started().prompt().token_ids(), SizeIs(8));
  ASSERT_THAT(response.answers(), SizeIs(1));
  EXPECT_EQ(IdsOf(response.answers(0)), stream.tokens);
  EXPECT_EQ(response.answers(0).text(), stream.text);
  EXPECT_THAT(response.answers(0).logprobs(), SizeIs(12));
  EXPECT_EQ(response.answers(0).finished().limit(), "stop.max_tokens=12");
  EXPECT_EQ(response.answers(0).finished().usage().generated_tokens(), 12U);
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "Complete")), 1);
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "Generate")), 1);
  WaitUntilIdle();
}

TEST_F(CompleteTest, EachOfSeveralAnswersIsThatOfItsSeedAndLeavesAStateThatGoesOn) {
  Start();
  v1::GenerateRequest request = Turn("a prompt", 5);
  request.set_n(3);
  const v1::CompleteResponse response = Answered(request);
  ASSERT_THAT(response.answers(), SizeIs(3));
  for (int i = 0; i < 3; ++i) {
    const v1::Answer& answer = response.answers(i);
    EXPECT_EQ(IdsOf(answer), Expected(Request("a prompt", 5, 7 + static_cast<uint64_t>(i))));
    v1::GenerateRequest next = Turn("more", 5, answer.finished().state().id());
    const v1::CompleteResponse again = Answered(next);
    ASSERT_THAT(again.answers(), SizeIs(1));
    EXPECT_EQ(IdsOf(again.answers(0)), Run(next).tokens);
    EXPECT_TRUE(Get(again.answers(0).finished().state().id()).ok());
  }
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "Complete")), 4);
  EXPECT_EQ(response.answers(0).finished().usage().prompt_tokens(), 8U);
  EXPECT_EQ(response.answers(1).finished().usage().prompt_tokens(), 0U);
  WaitUntilIdle();
}

TEST_F(CompleteTest, GoesOnBehindAnOutputThatTheClientHas) {
  Start();
  v1::GenerateRequest request = Request("a prompt", 9);
  const std::vector<TokenId> whole = Expected(request);
  const v1::Started started = Run(request).started;
  for (size_t i = 0; i < 4; ++i)
    request.mutable_resume()->add_token_ids(static_cast<uint32_t>(whole[i]));
  request.mutable_resume()->set_fingerprint(started.fingerprint());
  request.mutable_resume()->set_numerics(started.numerics());
  const v1::CompleteResponse response = Answered(request);
  EXPECT_EQ(IdsOf(response.answers(0)), std::vector<TokenId>(whole.begin() + 4, whole.end()));
  EXPECT_TRUE(response.started().exact());
}

TEST_F(CompleteTest, RefusalsAreThoseOfGenerate) {
  Start();
  v1::GenerateRequest request = Request("x", 3);
  request.mutable_sampling()->add_allowed_tokens(5);
  request.mutable_sampling()->add_banned_tokens(5);
  EXPECT_THAT(Complete(request).status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "sampling.allowed_tokens: must not all be banned"));
  request = Request("x", 3);
  request.set_model("no");
  EXPECT_THAT(Complete(request).status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("no")));
  request = Request("x", 3);
  request.mutable_previous()->set_state_id("00000000000000000000000000000000");
  const Completed unknown = Complete(request);
  EXPECT_THAT(unknown.status,
              StatusIs(absl::StatusCode::kNotFound, StartsWith("previous.state_id")));
  EXPECT_FALSE(unknown.id.empty());
  EXPECT_FALSE(unknown.usage);
  WaitUntilIdle();
}

TEST_F(CompleteTest, WhoLeavesFreesTheSlotAndStoresNothing) {
  Start();
  server_->control().Hold();
  v1::GenerateRequest request = Turn("a prompt", kEndless);
  request.set_n(2);
  grpc::Status status;
  grpc::ClientContext context;
  std::thread call([&] {
    v1::CompleteResponse response;
    status = server_->inference().Complete(&context, request, &response);
  });
  server_->control().RunSteps(5);
  context.TryCancel();
  server_->control().Resume();
  call.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  server_->WaitForMetric(RequestsTotal("CANCELLED", "Complete"), 1);
  server_->WaitForMetric("aft_states", 0);
  WaitUntilIdle();
}

TEST_F(CompleteTest, BannedTokensNeverComeAndAllowedOnesAlone) {
  Start();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    v1::GenerateRequest request = Request("a prompt", 20, seed);
    std::vector<TokenId> free = Expected(request);
    request.mutable_sampling()->add_banned_tokens(static_cast<uint32_t>(free[0]));
    EXPECT_THAT(IdsOf(Answered(request).answers(0)), ::testing::Not(Contains(free[0])));
    for (const uint32_t id : {7, 11, 13}) request.mutable_sampling()->add_allowed_tokens(id);
    EXPECT_THAT(IdsOf(Answered(request).answers(0)), Each(::testing::AnyOf(7, 11, 13)));
  }
  v1::GenerateRequest request = Request("a prompt", 8);
  (*request.mutable_sampling()->mutable_logit_bias())[9] = 2.5F;
  EXPECT_NE(IdsOf(Answered(request).answers(0)), Expected(Request("a prompt", 8)));
}

// A model that would end every text at once.
TEST_F(CompleteTest, NothingEndsAnOutputBeforeItsLeastLength) {
  options_.next_token = [](uint64_t, int64_t) { return FakeTokenizer::kEos; };
  Start();
  v1::GenerateRequest request = Turn("a prompt", 9);
  request.mutable_stop()->set_ignore_eos(false);
  EXPECT_THAT(Answered(request).answers(0).token_ids(), IsEmpty());
  request.mutable_stop()->set_min_tokens(4);
  request.set_n(2);
  const v1::CompleteResponse response = Answered(request);
  ASSERT_THAT(response.answers(), SizeIs(2));
  for (const v1::Answer& answer : response.answers()) {
    EXPECT_THAT(answer.token_ids(), SizeIs(4));
    EXPECT_EQ(answer.finished().reason(), v1::FINISH_REASON_EOS);
  }
  // Of the next turn's output it is asked anew; and of one that goes on, with what has come.
  request.clear_n();
  request.set_text("more");
  request.mutable_previous()->set_state_id(response.answers(0).finished().state().id());
  EXPECT_THAT(Answered(request).answers(0).token_ids(), SizeIs(4));
  request.mutable_resume()->add_token_ids(0);
  request.mutable_resume()->set_fingerprint(response.started().fingerprint());
  EXPECT_THAT(Answered(request).answers(0).token_ids(), SizeIs(3));
}

}  // namespace
}  // namespace aft::server
