// Complete, the options for single tokens, Tokenize and Detokenize over real gRPC, with a fake
// model.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/states/state_fixture.h"
#include "tests/support/fake_tokenizer.h"

namespace aft::server {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CompleteTest : public StateTest {
 protected:
  // The result of one call.
  struct Completed {
    grpc::Status status;
    v1::CompleteResponse response;
    std::string id;  // x-request-id
  };
  Completed Complete(const v1::GenerateRequest& request, const Prepare& prepare = {}) {
    grpc::ClientContext context;
    if (prepare) prepare(context);
    Completed completed;
    completed.status = server_->inference().Complete(&context, request, &completed.response);
    const auto& metadata = context.GetServerInitialMetadata();
    const auto id = metadata.find("x-request-id");
    if (id != metadata.end()) completed.id.assign(id->second.data(), id->second.size());
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

TEST_F(CompleteTest, EqualsTheStreamedAnswer) {
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

TEST_F(CompleteTest, PromptLogprobsAreTheScoresOfTheText) {
  Start();
  const std::string prompt(150, 'p');  // three steps
  v1::ScoreRequest text;
  text.set_text(prompt);
  text.mutable_output()->set_top_logprobs(2);
  ScoreStream scored(server_->inference(), text);
  ASSERT_TRUE(scored.Finish().ok());
  v1::ScoreChunk expected;
  for (const v1::ScoreResponse& event : scored.events) expected.MergeFrom(event.chunk());
  expected.set_first_index(1);
  for (const uint32_t max_tokens : {0U, 5U}) {
    v1::GenerateRequest request = Request(prompt, max_tokens);
    request.set_prompt_logprobs(true);
    request.mutable_output()->set_top_logprobs(2);
    const v1::Answer answer = Answered(request).answers(0);
    EXPECT_EQ(answer.prompt_scores().ShortDebugString(), expected.ShortDebugString());
    EXPECT_THAT(answer.token_ids(), SizeIs(max_tokens));
    EXPECT_EQ(answer.finished().usage().scored_tokens(), 149U);
    v1::ScoreChunk streamed;
    for (const v1::GenerateResponse& event : Run(request).events) {
      streamed.MergeFrom(event.prompt_scores());
    }
    streamed.set_first_index(1);
    EXPECT_EQ(streamed.ShortDebugString(), expected.ShortDebugString());
    if (max_tokens > 0) {
      EXPECT_EQ(IdsOf(answer), Expected(request));
    }
  }
  WaitUntilIdle();
}

TEST_F(CompleteTest, EachOfSeveralAnswersFollowsItsSeedAndStoresAState) {
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

TEST_F(CompleteTest, BannedTokensNeverComeAndOnlyAllowedOnesDo) {
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

TEST_F(CompleteTest, BadWordsNeverComeAndACallWithoutATokenLeftEnds) {
  options_.next_token = [](uint64_t, int64_t count) {
    return static_cast<TokenId>('a' + count % 3);
  };
  Start();
  v1::GenerateRequest request = Request("xyz", 7);
  EXPECT_EQ(Answered(request).answers(0).text(), "abcabca");
  for (const char* word : {"bc", "da"}) request.mutable_sampling()->add_bad_words(word);
  EXPECT_EQ(Answered(request).answers(0).text(), "abdbbdb");
  EXPECT_EQ(Run(request).text, "abdbbdb");
  request.set_n(2);
  const v1::CompleteResponse several = Answered(request);
  ASSERT_THAT(several.answers(), SizeIs(2));
  EXPECT_EQ(several.answers(1).text(), "abdbbdb");
  request.clear_n();
  // A resumed output's earlier tokens can begin a bad word.
  for (const TokenId id : {'a', 'b'}) {
    request.mutable_resume()->add_token_ids(static_cast<uint32_t>(id));
  }
  request.mutable_resume()->set_fingerprint(several.started().fingerprint());
  EXPECT_EQ(Run(request).text, "dbbdb");
  request.clear_resume();

  for (const uint32_t id : {'a', 'b'}) request.mutable_sampling()->add_allowed_tokens(id);
  for (const char* word : {"ba", "bb"}) request.mutable_sampling()->add_bad_words(word);
  const Completed none = Complete(request);
  EXPECT_EQ(none.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(none.status.error_message(),
            "sampling.bad_words: leave no token to sample as number 2 of the output");
  server_->WaitForMetric(R"(aft_slots_used{model="fake"})", 0);
  server_->WaitForMetric("aft_memory_used_bytes", 0);
}

// The model would end every text at once.
TEST_F(CompleteTest, NothingEndsAnOutputBeforeMinTokens) {
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
  // The next turn's output must have four tokens of its own. A resumed output counts its earlier
  // tokens.
  request.clear_n();
  request.set_text("more");
  request.mutable_previous()->set_state_id(response.answers(0).finished().state().id());
  EXPECT_THAT(Answered(request).answers(0).token_ids(), SizeIs(4));
  request.mutable_resume()->add_token_ids(0);
  request.mutable_resume()->set_fingerprint(response.started().fingerprint());
  EXPECT_THAT(Answered(request).answers(0).token_ids(), SizeIs(3));
}

using TokensTest = StateTest;

TEST_F(TokensTest, TextBecomesIdsAndIdsTheSameBytes) {
  Start();
  v1::TokenizeRequest request;
  request.set_raw("h\xFF\xC3");
  v1::TokenizeResponse ids;
  grpc::ClientContext tokenize;
  ASSERT_TRUE(server_->inference().Tokenize(&tokenize, request, &ids).ok());
  EXPECT_EQ(ids.model(), "fake");
  EXPECT_THAT(ids.token_ids(), ElementsAre('h', 255, 0xC3));
  EXPECT_THAT(ids.byte_ends(), ElementsAre(1, 2, 3));
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = ids.token_ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext detokenize;
  ASSERT_TRUE(server_->inference().Detokenize(&detokenize, back, &text).ok());
  EXPECT_EQ(text.raw(), request.raw());
  EXPECT_EQ(text.text(), "h\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "Tokenize")), 1);
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "Detokenize")), 1);
  server_->WaitForMetric("aft_memory_used_bytes", 0);
}

}  // namespace
}  // namespace aft::server
