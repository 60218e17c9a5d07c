// Resumable streams: the resume points that their server stores while it runs, and how it hands the
// streams over to their clients when it drains.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
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

constexpr char kFromState[] =
    "aft_streams_resumed_total{exact=\"yes\",from=\"state\",model=\"fake\"}";
constexpr char kFromText[] =
    "aft_streams_resumed_total{exact=\"yes\",from=\"text\",model=\"fake\"}";
constexpr char kRead[] = "aft_prompt_tokens_total{model=\"fake\"}";
constexpr char kGenerated[] = "aft_generated_tokens_total{model=\"fake\"}";
constexpr char kWritten[] = "aft_checkpoints_total{result=\"written\"}";
constexpr char kSkipped[] = "aft_checkpoints_total{result=\"skipped\"}";
constexpr char kFailed[] = "aft_checkpoints_total{result=\"failed\"}";

class SurvivalTest : public StateTest {
 protected:
  SurvivalTest() {
    config_.drain.grace = std::chrono::hours(1);
    // The model reads a prompt in one step.
    config_.models[0].max_step_tokens = options_.max_step_tokens = 512;
  }

  static v1::GenerateRequest Resumable(const std::string& prompt, uint32_t max_tokens) {
    v1::GenerateRequest request = Request(prompt, max_tokens);
    request.set_resumable(true);
    request.mutable_sampling()->set_frequency_penalty(0.5F);
    request.mutable_sampling()->set_penalty_decay(0.9F);
    return request;
  }
  std::vector<TokenId> Whole(const v1::GenerateRequest& request, size_t count = 0) const {
    SamplingParams params;
    params.seed = request.sampling().seed();
    params.frequency_penalty = request.sampling().frequency_penalty();
    params.penalty_decay = request.sampling().penalty_decay();
    return FakeModelRunner::Generate(
        options_, *FakeTokenizer().Encode(request.text()), params,
        count > 0 ? static_cast<int64_t>(count) : int64_t{request.stop().max_tokens()});
  }
  static void ExpectWhole(std::vector<TokenId> tokens, const GenerateStream& rest,
                          const std::vector<TokenId>& whole) {
    EXPECT_EQ(rest.finished.usage().resumed_tokens(), tokens.size());
    tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
    EXPECT_EQ(tokens, whole);
    EXPECT_TRUE(rest.started.exact());
  }

  // Reads `count` tokens of a stream that does not end by itself. After that the model makes no
  // token until it is released.
  GenerateStream Break(v1::GenerateRequest request, size_t count) {
    request.mutable_stop()->set_max_tokens(1'000'000);
    server_->control().Hold();
    generated_ = server_->Metric(kGenerated);
    GenerateStream stream(server_->inference(), request);
    while (stream.tokens.size() < count) {
      server_->control().AllowSteps(1);
      if (!stream.Next()) ADD_FAILURE() << "it has ended";
      if (testing::Test::HasFailure()) break;
    }
    return stream;
  }
  // Like Break, and waits until each resume point is stored. A snapshot is taken every `interval`
  // tokens, which must be fewer than the prompt's. Tries again until no resume point was skipped.
  GenerateStream BreakWithResumePoints(v1::GenerateRequest request, size_t count, size_t interval) {
    request.mutable_stop()->set_max_tokens(1'000'000);
    while (true) {
      const double written = server_->Metric(kWritten);
      const double skipped = server_->Metric(kSkipped);
      server_->control().Hold();
      generated_ = server_->Metric(kGenerated);
      GenerateStream stream(server_->inference(), request);
      while (stream.tokens.size() < count) {
        server_->control().AllowSteps(1);
        if (!stream.Next()) ADD_FAILURE() << "it has ended";
        if (testing::Test::HasFailure()) return stream;
        const size_t tokens = stream.tokens.size();
        if (tokens % interval != 1) continue;
        // The first snapshot is stored at once. Each later one is stored when the next one is
        // taken.
        const double expected =
            written + static_cast<double>(std::max<size_t>(tokens / interval, 1));
        while (server_->Metric(kWritten) < expected && server_->Metric(kSkipped) == skipped) {
          std::this_thread::yield();
        }
      }
      if (server_->Metric(kSkipped) == skipped) return stream;
      Leave(stream);
    }
  }
  // Cancels the stream, which the server notices after an unknown number of steps. Returns the
  // number of tokens that the server generated since Break.
  size_t Leave(GenerateStream& stream) {
    stream.context().TryCancel();
    stream.Finish();
    while (server_->Metric("aft_requests_running{model=\"fake\"}") > 0) {
      server_->control().AllowSteps(1);
    }
    server_->control().Resume();
    return static_cast<size_t>(server_->Metric(kGenerated) - generated_);
  }

  // The number of tokens that a server generated after the first `count`. Meanwhile the test did
  // not wait for resume points.
  static double Since(size_t count, const std::vector<TokenId>& output) {
    return static_cast<double>(output.size() - count);
  }

  double generated_ = 0;  // the value of kGenerated before Break
};

TEST_F(SurvivalTest, ABrokenStreamIsReadAgainFromItsLastResumePointOnly) {
  config_.states.checkpoint_tokens = 20;
  Start();
  v1::GenerateRequest request = Resumable(std::string(200, 'p'), 100);
  GenerateStream part = BreakWithResumePoints(request, 73, 10);
  EXPECT_THAT(part.started.resume_id(), SizeIs(32));
  const std::vector<TokenId> output = Whole(request, Leave(part));
  request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(output.size() + 30));
  const double read = server_->Metric(kRead);
  // Streams from failed attempts of BreakWithResumePoints have also left resume points.
  const double states = server_->Metric("aft_states");
  const GenerateStream rest = Run(Resumed(request, part.started, output));
  ExpectWhole(output, rest, Whole(request));
  EXPECT_EQ(server_->Metric(kFromState), 1);
  EXPECT_LE(server_->Metric(kRead) - read, 20 + Since(73, output));
  EXPECT_NE(rest.started.resume_id(), part.started.resume_id());
  // The stream has ended normally, so its resume point is deleted. A further resume reads all of
  // the text again.
  server_->WaitForMetric("aft_states", states - 1);
  ExpectWhole(output, Run(Resumed(request, part.started, output)), Whole(request));
  EXPECT_EQ(server_->Metric(kFromText), 1);
}

TEST_F(SurvivalTest, AResumePointBeyondTheClientsTokensIsIgnored) {
  config_.states.checkpoint_tokens = 20;
  Start();
  const v1::GenerateRequest request = Resumable(std::string(30, 'p'), 60);
  GenerateStream part = BreakWithResumePoints(request, 45, 10);
  Leave(part);
  part.tokens.resize(10);
  ExpectWhole(part.tokens, Run(Resumed(request, part)), Whole(request));
  EXPECT_EQ(server_->Metric(kFromText), 1);
}

TEST_F(SurvivalTest, AStreamThatBreaksTwiceKeepsItsResumePoint) {
  config_.states.checkpoint_tokens = 8;
  Start();
  v1::GenerateRequest request = Resumable(std::string(100, 'p'), 80);
  GenerateStream first = BreakWithResumePoints(request, 30, 4);
  std::vector<TokenId> output = Whole(request, Leave(first));
  // It breaks at once. Its only resume point is the state from which it resumed.
  const double written = server_->Metric(kWritten);
  GenerateStream second = Break(Resumed(request, first.started, output), 1);
  while (server_->Metric(kWritten) <= written) std::this_thread::yield();
  EXPECT_EQ(server_->Metric(kFromState), 1);
  output = Whole(request, output.size() + Leave(second));
  request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(output.size() + 30));
  const double read = server_->Metric(kRead);
  const GenerateStream rest = Run(Resumed(request, second.started, output));
  ExpectWhole(output, rest, Whole(request));
  EXPECT_EQ(server_->Metric(kFromState), 2);
  EXPECT_LE(server_->Metric(kRead) - read, 8 + Since(30, output));
}

TEST_F(SurvivalTest, AResumedStreamThatEndsInTheQueueLeavesTheOldResumePoint) {
  config_.states.checkpoint_tokens = 8;
  config_.models[0].slots = 1;
  Start();
  v1::GenerateRequest request = Resumable(std::string(100, 'p'), 80);
  GenerateStream part = BreakWithResumePoints(request, 30, 4);
  const std::vector<TokenId> output = Whole(request, Leave(part));
  request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(output.size() + 30));
  GenerateStream running = Break(Request("running", 1), 1);
  GenerateStream waiting(server_->inference(), Resumed(request, part.started, output));
  server_->WaitForMetric("aft_requests_waiting{model=\"fake\"}", 1);
  waiting.context().TryCancel();
  EXPECT_EQ(waiting.Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (server_->Metric("aft_requests_waiting{model=\"fake\"}") > 0) {
    server_->control().AllowSteps(1);
  }
  Leave(running);
  ExpectWhole(output, Run(Resumed(request, part.started, output)), Whole(request));
  EXPECT_EQ(server_->Metric(kFromState), 1);
  EXPECT_EQ(server_->Metric("aft_streams_resumed_total"), 1);  // not the one that ended
}

TEST_F(SurvivalTest, AStreamWhoseStepFailedKeepsItsResumePoint) {
  config_.states.checkpoint_tokens = 20;
  Start();
  v1::GenerateRequest request = Resumable(std::string(200, 'p'), 100);
  GenerateStream part = BreakWithResumePoints(request, 73, 10);
  server_->control().FailNext(FakeCall::kCollect);
  server_->control().Resume();
  EXPECT_EQ(part.Finish().error_code(), grpc::StatusCode::INTERNAL);
  request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(part.tokens.size() + 30));
  ExpectWhole(part.tokens, Run(Resumed(request, part)), Whole(request));
  EXPECT_EQ(server_->Metric(kFromState), 1);
}

TEST_F(SurvivalTest, OnlyResumableStreamsLeaveResumePoints) {
  config_.states.checkpoint_tokens = 4;
  Start();
  v1::GenerateRequest request = Resumable("hello", 40);
  request.set_resumable(false);
  EXPECT_EQ(Run(request).started.resume_id(), "");
  EXPECT_EQ(server_->Metric(kWritten), 0);
}

TEST_F(SurvivalTest, AFullBudgetEndsNoStream) {
  config_.states.checkpoint_tokens = 4;
  config_.states.max_bytes = 100;  // too small for one state
  Start();
  const v1::GenerateRequest request = Resumable("hello", 60);
  GenerateStream stream = Break(request, 20);
  while (server_->Metric(kFailed) == 0) std::this_thread::yield();
  Leave(stream);
  EXPECT_EQ(Run(request).tokens, Whole(request));
  EXPECT_EQ(server_->Metric(kWritten), 0);
}

TEST_F(SurvivalTest, ADrainHandsStreamsOverToTheirClients) {
  UseStateKey(folder_, config_);
  options_.state_bytes = 300'000;  // more than one message
  Start();
  v1::GenerateRequest request = Resumable("hello", 500);
  GenerateStream part = Break(request, 5);
  const v1::GenerateRequest patient = Request("patient", 100'000);
  GenerateStream waits(server_->inference(), patient);
  while (server_->Metric("aft_requests_running{model=\"fake\"}") < 2) {
    server_->control().AllowSteps(1);
  }
  std::thread drain([this] { EXPECT_TRUE(server_->server().Drain()); });
  server_->WaitForMetric("aft_model_state{model=\"fake\",state=\"draining\"}", 1);
  // The drain is not over before the other stream ends.
  while (server_->Metric("aft_streams_handed_over_total") == 0) server_->control().AllowSteps(1);
  const grpc::Status status = part.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("draining"));
  EXPECT_TRUE(part.event().has_hand_over());
  EXPECT_EQ(part.started.resume_id(), "");
  EXPECT_EQ(server_->Metric("aft_streams_handed_over_total{to=\"client\"}"), 1);
  EXPECT_EQ(server_->Metric("aft_streams_handed_over_total"), 1);
  server_->control().Resume();
  EXPECT_TRUE(waits.Finish().ok());
  EXPECT_EQ(waits.tokens, Expected(patient));
  drain.join();

  server_ = nullptr;
  Start();
  request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(part.tokens.size() + 30));
  const GenerateStream rest = Run(Resumed(request, part));
  ExpectWhole(part.tokens, rest, Whole(request));
  EXPECT_EQ(server_->Metric(kFromState), 1);
  EXPECT_EQ(server_->Metric(kRead), 1);
  EXPECT_EQ(server_->Metric("aft_client_tokens_total{client=\"other\"}"), 1 + 30);
  // A handed-over state that does not match the tokens, or is damaged, is ignored.
  v1::GenerateRequest other = Resumed(request, part);
  other.mutable_resume()->mutable_token_ids()->RemoveLast();
  GenerateStream shorter = Run(other);
  EXPECT_EQ(shorter.tokens.size(), rest.tokens.size() + 1);
  other = Resumed(request, part);
  (*other.mutable_resume()->mutable_state())[100] ^= 1;
  EXPECT_EQ(Run(other).tokens, rest.tokens);
  EXPECT_EQ(server_->Metric(kFromState), 1);
  EXPECT_EQ(server_->Metric(kFromText), 2);
  // The server told no client an id under which it could find a state.
  EXPECT_EQ(rest.started.resume_id(), "");
  EXPECT_EQ(server_->Metric(kWritten), 0);
}

// A handed-over state contains the text before, but the request still names the state of that text.
TEST_F(SurvivalTest, AStreamOfALaterTurnIsResumedOnlyWhereItsPreviousStateIs) {
  UseStateKey(folder_, config_);
  Start();
  v1::GenerateRequest request = Resumable(" you", 500);
  request.mutable_previous()->set_state_id(Run(Turn("hello", 3)).finished.state().id());
  GenerateStream part = Break(request, 5);
  std::thread drain([this] { EXPECT_TRUE(server_->server().Drain()); });
  do {  // step by step, so that the stream is not faster than this client
    server_->control().AllowSteps(1);
  } while (part.Next());
  server_->control().Resume();
  EXPECT_EQ(part.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(part.event().has_hand_over());
  drain.join();
  server_ = nullptr;
  Start();
  request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(part.tokens.size() + 30));
  EXPECT_THAT(
      Refused(Resumed(request, part)),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("previous.state_id: no state of this id")));
}

TEST_F(SurvivalTest, AFolderAloneKeepsNoStateOfAStream) {
  UseStateFolder(folder_, config_);
  Start();
  EXPECT_EQ(Run(Resumable("hello", 5)).started.resume_id(), "");
}

TEST_F(SurvivalTest, WithAFolderTheNextServerResumesFromTheLastOnesResumePoint) {
  UseStateFolder(folder_, config_);
  config_.states.checkpoint_tokens = 10;
  Start();
  v1::GenerateRequest request = Resumable(std::string(150, 'p'), 300);
  GenerateStream part = BreakWithResumePoints(request, 64, 5);
  const std::vector<TokenId> output = Whole(request, Leave(part));
  request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(output.size() + 30));
  server_ = nullptr;
  Start();
  const GenerateStream rest = Run(Resumed(request, part.started, output));
  ExpectWhole(output, rest, Whole(request));
  EXPECT_EQ(server_->Metric(kFromState), 1);
  EXPECT_LE(server_->Metric(kRead), 10 + Since(64, output));
}

TEST_F(SurvivalTest, ADrainEndsAStreamWithoutAHandOver) {
  Start();
  v1::GenerateRequest request = Resumable("hello", 500);
  GenerateStream part = Break(request, 5);
  std::thread drain([this] { EXPECT_TRUE(server_->server().Drain()); });
  do {  // step by step, so that the stream is not faster than this client
    server_->control().AllowSteps(1);
  } while (part.Next());
  server_->control().Resume();
  // The drain may be over before a metric could have shown it.
  EXPECT_EQ(part.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(part.event().has_hand_over());
  drain.join();
  server_ = nullptr;
  Start();
  request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(part.tokens.size() + 30));
  ExpectWhole(part.tokens, Run(Resumed(request, part)), Whole(request));
}

}  // namespace
}  // namespace aft::server
