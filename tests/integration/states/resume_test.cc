// A stream resumes at another server from what its client received, over real gRPC, with a fake
// model.
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/states/state_fixture.h"
#include "tests/property/random_inputs.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kExactly[] = "aft_streams_resumed_total{exact=\"yes\",from=\"text\",model=\"fake\"}";
constexpr char kOtherwise[] =
    "aft_streams_resumed_total{exact=\"no\",from=\"text\",model=\"fake\"}";

// The request of a client that resumes a stream after its first `count` tokens.
v1::GenerateRequest ResumedAfter(size_t count, const v1::GenerateRequest& request,
                                 const GenerateStream& whole) {
  return Resumed(request, whole.started, absl::MakeConstSpan(whole.tokens).first(count));
}

class ResumeTest : public StateTest {
 protected:
  // Returns the error message. The request must be refused with INVALID_ARGUMENT.
  std::string Wrong(const v1::GenerateRequest& request) {
    const grpc::Status status = Refused(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return status.error_message();
  }
};

TEST_F(ResumeTest, AStreamResumesAtAnotherServer) {
  options_.fingerprint = 0xABCD;
  Start();
  TestServer other(config_, options_);
  v1::GenerateRequest request = Request("hello", 30);
  request.mutable_sampling()->clear_seed();
  request.mutable_output()->set_top_logprobs(2);
  const GenerateStream whole = Run(request);
  EXPECT_EQ(whole.started.fingerprint(), 0xABCDU);
  EXPECT_EQ(whole.started.numerics(), "fake");
  EXPECT_FALSE(whole.started.exact());
  for (const size_t cut : {0U, 1U, 17U, 29U, 30U}) {
    SCOPED_TRACE(cut);
    GenerateStream rest(other.inference(), ResumedAfter(cut, request, whole));
    EXPECT_TRUE(rest.Finish().ok());
    std::vector<TokenId> tokens(whole.tokens.begin(),
                                whole.tokens.begin() + static_cast<std::ptrdiff_t>(cut));
    tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
    EXPECT_EQ(tokens, whole.tokens);
    EXPECT_EQ(rest.started.seed(), whole.started.seed());
    EXPECT_EQ(rest.started.prompt_tokens(), 5U);
    EXPECT_TRUE(rest.started.exact());
    EXPECT_EQ(rest.finished.limit(), whole.finished.limit());
    EXPECT_EQ(rest.finished.usage().prompt_tokens(), 5U);
    EXPECT_EQ(rest.finished.usage().generated_tokens(), 30U);
    EXPECT_EQ(rest.finished.usage().resumed_tokens(), cut);
  }
  EXPECT_EQ(other.Metric(kExactly), 5);
  EXPECT_EQ(other.Metric(kOtherwise), 0);
  EXPECT_EQ(server_->Metric(kExactly), 0);
  // Each request but the last is charged for 35 tokens: for 5 of the prompt, for the output that it
  // brought (1 + 17 + 29 in all), and for the rest, which it generates. The last one brought the
  // whole output, so the server reads nothing.
  EXPECT_EQ(other.Metric("aft_prompt_tokens_total{model=\"fake\"}"), 4 * 5 + 47);
  EXPECT_EQ(other.Metric("aft_client_tokens_total{client=\"other\"}"), 4 * 35);
}

TEST_F(ResumeTest, OnlyTheSameBitsAreExact) {
  Start();
  const v1::GenerateRequest request = Request("hello", 10);
  const GenerateStream whole = Run(request);
  const auto exact_at = [&](const FakeModelRunner::Options& options, size_t cut,
                            const std::string& numerics = "fake") {
    TestServer other(config_, options);
    v1::GenerateRequest resumed = ResumedAfter(cut, request, whole);
    resumed.mutable_resume()->set_numerics(numerics);
    GenerateStream rest(other.inference(), resumed);
    EXPECT_TRUE(rest.Finish().ok());
    EXPECT_EQ(other.Metric(kOtherwise), rest.started.exact() ? 0 : 1);
    return rest.started.exact();
  };
  EXPECT_TRUE(exact_at(options_, 4));
  EXPECT_FALSE(exact_at(options_, 4, "AVX2"));
  EXPECT_FALSE(exact_at(options_, 4, ""));
  EXPECT_TRUE(exact_at(options_, 0, "AVX2"));  // this server computes all of it
  FakeModelRunner::Options no_promise = options_;
  no_promise.numerics = "";
  EXPECT_FALSE(exact_at(no_promise, 4, ""));
  EXPECT_TRUE(exact_at(no_promise, 0, ""));
  FakeModelRunner::Options differ = options_;
  differ.generated_differ = true;
  EXPECT_FALSE(exact_at(differ, 4));
  EXPECT_TRUE(exact_at(differ, 0));
}

TEST_F(ResumeTest, AResumedAnswerIsReadAsTheModelsOwnOutput) {
  options_.generated_differ = true;
  Start();
  const GenerateStream first = Run(Turn("hello", 5));
  const v1::GenerateRequest request = Turn(" you", 10, first.finished.state().id());
  const GenerateStream whole = Run(request);
  const GenerateStream rest = Run(ResumedAfter(6, request, whole));
  EXPECT_TRUE(rest.started.exact());
  EXPECT_EQ(rest.finished.state().history(), whole.finished.state().history());
  EXPECT_EQ(rest.finished.state().tokens(), whole.finished.state().tokens());
}

TEST_F(ResumeTest, AResumedStreamReservesTheSameRoomForItsState) {
  Start();
  const v1::GenerateRequest request = Turn("hello", 10);
  const GenerateStream whole = Run(request);
  const auto reserved = [&](const v1::GenerateRequest& held) {
    const double before = server_->Metric("aft_states_bytes");
    server_->control().Hold();
    GenerateStream stream(server_->inference(), held);
    server_->control().WaitUntilBlocked();
    const double bytes = server_->Metric("aft_states_bytes") - before;
    server_->control().Resume();
    EXPECT_TRUE(stream.Finish().ok());
    return bytes;
  };
  EXPECT_EQ(reserved(ResumedAfter(6, request, whole)), reserved(request));
}

TEST_F(ResumeTest, EveryFieldIsCheckedByName) {
  options_.fingerprint = 0xABCD;
  Start();
  const v1::GenerateRequest request = Request("hello", 4);
  const GenerateStream whole = Run(request);
  const v1::GenerateRequest good = ResumedAfter(2, request, whole);
  const auto with = [&](const auto& change) {
    v1::GenerateRequest bad = good;
    change(bad);
    return bad;
  };
  EXPECT_THAT(Wrong(with([](auto& bad) { bad.mutable_sampling()->clear_seed(); })),
              HasSubstr("sampling.seed: must be set with resume"));
  EXPECT_THAT(Wrong(with([](auto& bad) { bad.set_n(2); })),
              AllOf(HasSubstr("resume: "), HasSubstr("n=1")));
  EXPECT_THAT(Wrong(with([](auto& bad) { bad.mutable_resume()->add_token_ids(257); })),
              HasSubstr("resume.token_ids[2]: must be below 257"));
  EXPECT_THAT(Wrong(with([](auto& bad) { bad.mutable_resume()->add_token_ids(~0U); })),
              HasSubstr("resume.token_ids[2]"));
  EXPECT_THAT(Wrong(with([](auto& bad) {
                for (int i = 0; i < 3; ++i) bad.mutable_resume()->add_token_ids(1);
              })),
              HasSubstr("resume.token_ids: 5 tokens, but the output ends with 4"));
  EXPECT_THAT(Wrong(with([](auto& bad) { bad.clear_text(); })), HasSubstr("prompt: "));
  for (const uint64_t fingerprint : {uint64_t{0}, uint64_t{0xABCE}}) {
    const grpc::Status status =
        Refused(with([&](auto& bad) { bad.mutable_resume()->set_fingerprint(fingerprint); }));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(),
                AllOf(HasSubstr("resume.fingerprint"), HasSubstr("000000000000abcd")));
  }
  EXPECT_EQ(server_->Metric(kExactly), 0);
  EXPECT_EQ(Run(with([](auto& bad) { bad.set_n(1); })).tokens.size(), 2U);
  ExpectServes(*server_);
}

TEST_F(ResumeTest, AnUnknownIdIsNoError) {
  Start();
  const v1::GenerateRequest request = Request("hello", 8);
  const GenerateStream whole = Run(request);
  v1::GenerateRequest resumed = ResumedAfter(5, request, whole);
  for (const std::string& id : {std::string(32, '0'), std::string("x"), std::string(32, '\0')}) {
    resumed.mutable_resume()->set_resume_id(id);
    resumed.mutable_resume()->set_state(id);
    EXPECT_EQ(Run(resumed).tokens,
              std::vector<TokenId>(whole.tokens.begin() + 5, whole.tokens.end()));
  }
}

// A forged output is refused, or the model continues after it as after its own.
TEST_F(ResumeTest, ForgedOutputsAreRefusedOrReplayed) {
  options_.fingerprint = 0xABCD;
  Start();
  TestRandom random;
  int replayed = 0;
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE(round);
    const auto most = static_cast<uint32_t>(1 + random.Below(12));
    v1::GenerateRequest request = Request("hello", most, static_cast<uint64_t>(round));
    v1::Resume& resume = *request.mutable_resume();
    resume.set_fingerprint(random.Below(10) == 0 ? 0xABCC : 0xABCD);
    resume.set_numerics(std::string(static_cast<size_t>(random.Below(140)), 'n'));
    std::vector<TokenId> outputs(static_cast<size_t>(random.Below(14)));
    for (TokenId& id : outputs) {
      id = static_cast<TokenId>(random.Below(random.Below(20) == 0 ? 100'000 : 257));
      resume.add_token_ids(static_cast<uint32_t>(id));
    }
    GenerateStream stream(server_->inference(), request);
    const grpc::Status status = stream.Finish();
    if (!status.ok()) {
      EXPECT_THAT(status.error_message(), HasSubstr("resume."));
      EXPECT_TRUE(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
                  status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
      EXPECT_THAT(stream.events, IsEmpty());
      ++refused;
      continue;
    }
    ++replayed;
    ASSERT_LE(outputs.size(), most);
    FakeModelRunner::Text text(options_);
    SamplingParams params;
    params.seed = static_cast<uint64_t>(round);
    text.Read(*FakeTokenizer().Encode("hello"));
    text.Replay(outputs);
    EXPECT_EQ(stream.tokens, text.Sample(params, static_cast<int64_t>(most) -
                                                     static_cast<int64_t>(outputs.size())));
    EXPECT_EQ(stream.finished.usage().generated_tokens(), most);
  }
  EXPECT_GT(replayed, 100);
  EXPECT_GT(refused, 100);
  ExpectServes(*server_);
}

}  // namespace
}  // namespace aft::server
