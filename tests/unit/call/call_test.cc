// Follows a call from the bytes of its request to its last message. The engine and the carrier have
// threads of their own, but there is no gRPC, so ThreadSanitizer can check these tests too.
#include "server/call/call.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/admission/memory_ledger.h"
#include "server/api/aft/typed_exchange.h"
#include "server/call/carrier.h"
#include "server/config/client.h"
#include "server/scheduling/time.h"
#include "tests/property/random_inputs.h"
#include "tests/support/states.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/call/call_fixture.h"
#include "tests/unit/call/silent_exchanges.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Generate = TypedExchange<GenerateCodec>;
using Complete = TypedExchange<CompleteCodec>;
using Score = TypedExchange<ScoreCodec>;
using Encode = TypedExchange<EncodeCodec>;
using Tokenize = AnswerExchange<TokenizeCodec>;

TEST_F(CallTest, TextsAreScoredAndEncoded) {
  v1::ScoreRequest score;
  score.set_model("fake");
  score.add_texts()->set_text("abc");
  score.add_texts()->set_text("de");
  Open scores = Start<Score>(score);
  EXPECT_TRUE(scores.Join().status.ok());
  EXPECT_EQ(scores.Messages<v1::ScoreResponse>().back().finished().scored_tokens() > 0, true);
  v1::EncodeRequest encode;
  encode.set_model("encoder");
  encode.set_text("abc");
  Open vectors = Start<Encode>(encode);
  EXPECT_TRUE(vectors.Join().status.ok());
  EXPECT_TRUE(vectors.Messages<v1::EncodeResponse>().back().has_finished());
}

TEST_F(CallTest, TokenizeDoesNotWaitForTheEngine) {
  fakes_.control->Hold();
  v1::TokenizeRequest request;
  request.set_model("fake");
  request.set_text("abc");
  Open open = Start<Tokenize>(request);
  EXPECT_TRUE(open.Join().status.ok());
  EXPECT_EQ(open.Messages<v1::TokenizeResponse>().at(0).token_ids_size(), 3);
}

TEST_F(CallTest, ALargeAnswerIsMadeOnTheDecodePool) {
  v1::GenerateRequest request = Prompt("abc", 500);
  request.mutable_output()->set_top_logprobs(20);
  Open large = Start<Complete>(request);
  EXPECT_TRUE(large.Join().status.ok()) << large.call->ending().status;
  EXPECT_GT(large.carrier->messages().at(0).size(), size_t{32} << 10);
  EXPECT_THAT(large.carrier->wakers(), ElementsAre("aft-decode"));
}

TEST_F(CallTest, ASingleMessageWakesItsCarrierOnce) {
  Open open = Start<Complete>(Prompt("abc", 5, /*n=*/3));
  EXPECT_TRUE(open.Join().status.ok());
  EXPECT_THAT(open.carrier->wakers(), SizeIs(1));
}

TEST_F(CallTest, ARefusalHasSentNothingAndSaysWhenToRetry) {
  Open unknown = Start<Generate>([] {
    v1::GenerateRequest request = Prompt("abc", 5);
    request.set_model("unlisted");
    return request;
  }());
  EXPECT_THAT(unknown.Join().status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("unlisted")));
  EXPECT_FALSE(unknown.call->ending().begun);
  EXPECT_FALSE(unknown.call->ending().retry_after.has_value());
  EXPECT_TRUE(unknown.carrier->messages().empty());

  MemoryLedger full(1 << 20, 1 << 20, metrics_);
  MemoryLedger::Charge charge(full, Client{});
  ASSERT_TRUE(charge.Resize(1 << 20));
  const auto without_room = EnvironmentWith(full, limits_, *states_);
  Open refused = StartIn<Generate>(*without_room, Prompt("abc", 5));
  EXPECT_THAT(refused.Join().status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_memory_bytes")));
  EXPECT_TRUE(refused.call->ending().retry_after.has_value());

  MemoryLedger small(1, 1, metrics_);
  const auto too_small = EnvironmentWith(small, limits_, *states_);
  Open never = StartIn<Generate>(*too_small, Prompt("abc", 5));
  EXPECT_THAT(never.Join().status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the request would take ")));
  EXPECT_FALSE(never.call->ending().retry_after.has_value());
}

TEST_F(CallTest, OnlyTheTimeInWhichGoodCallsRanChangesTheRetryHint) {
  const auto hint = [this] {
    return environment_->retry_hint.After({.waiting = 100, .slots = 1}).count();
  };
  Open good = Make(*environment_, std::make_unique<Generate>());  // waits while the others run
  EXPECT_EQ(hint(), 50'000);
  v1::TokenizeRequest request;
  request.set_model("fake");
  request.set_text("abc");
  EXPECT_TRUE(Start<Tokenize>(request).Join().status.ok());
  EXPECT_EQ(hint(), 50'000);
  fakes_.control->Hold();
  Open cancelled = Start<Generate>(Prompt("abc", 1'000'000));
  fakes_.control->RunSteps(20);
  cancelled.call->Cancel(absl::CancelledError("gone"));
  fakes_.control->Resume();
  EXPECT_EQ(cancelled.Join().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(hint(), 50'000);
  Begin(*good.call, Prompt("abc", 5));
  EXPECT_TRUE(good.Join().status.ok());
  const Timings& timings = good.call->ending().timings;
  EXPECT_NEAR(static_cast<double>(hint()),
              50'000 * (0.9 + 0.1 * Seconds(timings.total - timings.queue)), 2);
}

TEST_F(CallTest, ACallEndsWhenTheBufferOfASlowClientIsFull) {
  LimitsConfig small = limits_;
  small.max_stream_buffer_bytes = 64;
  const auto environment = EnvironmentWith(ledger_, small, *states_);
  fakes_.control->Hold();
  Open open = StartIn<Generate>(*environment, Prompt("abc", 1'000'000), /*reads=*/false);
  fakes_.control->WaitUntilBlocked();  // the engine has the first call
  fakes_.control->Resume();
  // The engine ends the first call, so that its slot is free for the second one.
  Open other = Start<Generate>(Prompt("def", 5, /*n=*/4));
  EXPECT_TRUE(other.Join().status.ok());
  open.carrier->Read();
  EXPECT_THAT(open.Join().status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("slow client")));
  EXPECT_TRUE(open.carrier->messages().empty());  // so that the client may try again
}

TEST_F(CallTest, ACancelLeavesTheExchangeToTheThreadThatDecodes) {
  auto interrupted = std::make_unique<Interrupted>();
  Interrupted& exchange = *interrupted;
  Open open = Make(*environment_, std::move(interrupted));
  exchange.cancel = [&] { open.call->Cancel(absl::CancelledError("gone")); };
  Begin(*open.call, Prompt("abc", 1'000'000));
  EXPECT_THAT(open.Join().status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("gone")));
  EXPECT_FALSE(exchange.used_while_decoding);
}

TEST_F(CallTest, ACallThatIsCancelledBeforeItStartsEndsWithThatStatus) {
  Open open = Make(*environment_, std::make_unique<Generate>());
  open.call->Cancel(absl::ResourceExhaustedError("slow client"));
  open.call->Cancel(absl::CancelledError("a later reason"));
  Begin(*open.call, Prompt("abc", 1'000'000));
  EXPECT_THAT(open.Join().status, StatusIs(absl::StatusCode::kResourceExhausted, "slow client"));
}

TEST_F(CallTest, AReportThatFailsIsNotRepeated) {
  Open open = Start<Unrecorded>(Prompt("abc", 5));
  EXPECT_EQ(open.Join().status, absl::OkStatus());
  EXPECT_EQ(Counted("aft_requests_total"), 1);
  EXPECT_EQ(Counted("aft_client_requests_total"), 1);
}

// The client has not given up on them, so no first token is late.
TEST_F(CallTest, SequencesThatEndBecauseAnotherOneHasFailedAreNotCancelled) {
  fakes_.control->Hold();
  Open open = Start<Complete>(Prompt("abcdef", 5, /*n=*/3));
  fakes_.control->WaitUntilBlocked();
  fakes_.control->FailNext(FakeCall::kCollect);
  fakes_.control->Resume();
  EXPECT_EQ(open.Join().status.code(), absl::StatusCode::kInternal);
  ModelMetrics& metrics = *registry_->FindMetrics(*AnonymousClient(), "fake");
  EXPECT_EQ(metrics.finished(Ending::kError).Value(), 3);
  const auto missed = metrics.ttft_missed_seconds[Method::kComplete].Collect();
  EXPECT_EQ(missed.histogram.sample_count, 0U);
}

// Only a client that gave up, and one without time, has missed its first token.
TEST_F(CallTest, TheMetricsSayWhyACallWasCancelled) {
  uint64_t missed = 0;
  for (const auto& [why, ending] :
       {std::pair(absl::CancelledError("gone"), Ending::kCancelled),
        {absl::PermissionDeniedError("revoked"), Ending::kCancelled},
        {SlowClient(), Ending::kSlowClient},
        {absl::UnavailableError("the server is shutting down"), Ending::kShutdown},
        {absl::ResourceExhaustedError("no memory for the message"), Ending::kError}}) {
    fakes_.control->Hold();
    Open open = Start<Generate>(Prompt(std::string(300, 'x'), 1));  // five steps
    fakes_.control->WaitUntilBlocked();
    WaitForDecoders();
    ModelMetrics& metrics = *registry_->FindMetrics(*AnonymousClient(), "fake");
    const double before = metrics.finished(ending).Value();
    open.call->Cancel(why);
    fakes_.control->Resume();
    EXPECT_EQ(open.Join().status, why);
    EXPECT_EQ(metrics.finished(ending).Value(), before + 1) << why;
    if (ending == Ending::kCancelled) ++missed;
    const auto late = metrics.ttft_missed_seconds[Method::kGenerate].Collect();
    EXPECT_EQ(late.histogram.sample_count, missed) << why;
  }
}

TEST_F(CallTest, AStateThatTheClientWasToldOutlivesTheLossOfItsAccess) {
  v1::GenerateRequest request = Prompt("abc", 5);
  request.mutable_store();
  Open open = Make(*environment_, std::make_unique<Generate>());
  open.carrier->before_close = [&] { open.call->OnClient(Named("ada", {"encoder"})); };
  Begin(*open.call, request);
  EXPECT_EQ(open.Join().status, absl::OkStatus());
  v1::GenerateRequest next = Prompt("d", 5);
  next.mutable_previous()->set_state_id(
      open.Messages<v1::GenerateResponse>().back().finished().state().id());
  EXPECT_EQ(Start<Generate>(next).Join().status, absl::OkStatus());
}

TEST_F(CallTest, ACallEndsWhenItsClientLosesAccessToTheModel) {
  fakes_.control->Hold();  // so that a slow machine does not fall behind the stream
  Open open = Start<Generate>(Prompt("abc", 1'000'000));
  fakes_.control->RunSteps(20);
  open.carrier->WaitForMessages(2);
  open.call->OnClient(Named("ada", {"fake"}));
  open.call->OnClient(Named("ada", {"encoder"}));
  fakes_.control->Resume();
  EXPECT_EQ(open.Join().status.code(), absl::StatusCode::kPermissionDenied);
  // The status is the same if the client loses access before the call knows its model.
  Open early = Make(*environment_, std::make_unique<Generate>());
  early.call->OnClient(Named("ada", {"encoder"}));
  Begin(*early.call, Prompt("abc", 5));
  EXPECT_EQ(early.Join().status.code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(CallTest, ACallThatExceedsItsDeadlineEndsWithThatStatus) {
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  Open open = Start<Generate>(Prompt("abc", 1'000'000), /*reads=*/true, deadline);
  EXPECT_EQ(open.Join().status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(CallTest, AStateIsStoredAndContinued) {
  v1::GenerateRequest first = Prompt("abc", 5);
  first.mutable_store();
  Open open = Start<Generate>(first);
  EXPECT_TRUE(open.Join().status.ok());
  const auto messages = open.Messages<v1::GenerateResponse>();
  v1::GenerateRequest second = Prompt("def", 5);
  second.mutable_previous()->set_state_id(messages.back().finished().state().id());
  Open next = Start<Generate>(second);
  EXPECT_TRUE(next.Join().status.ok());
  second.mutable_previous()->set_state_id(std::string(32, 'a'));
  Open unknown = Start<Generate>(second);
  EXPECT_EQ(unknown.Join().status.code(), absl::StatusCode::kNotFound);
}

TEST_F(CallTest, ACallWithoutMemoryToStoreItsStateEnds) {
  v1::GenerateRequest request = Prompt("abc", 5);
  request.mutable_store();
  Open open = Start<Forgetful>(request);
  EXPECT_THAT(open.Join().status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory: ")));
}

TEST_F(CallTest, TheStatesThatAStreamLeavesAreCharged) {
  StatesConfig config;
  config.checkpoint_tokens = 1'000'000;
  const std::unique_ptr<StateAccess> states = OpenStates(config, metrics_.states);
  const auto environment = EnvironmentWith(ledger_, limits_, *states);
  int64_t used = 0;
  for (const bool resumable : {false, true}) {
    v1::GenerateRequest request = Prompt("abc", 5);
    request.set_resumable(resumable);
    fakes_.control->Hold();
    Open open = StartIn<Generate>(*environment, request);
    fakes_.control->WaitUntilBlocked();
    EXPECT_GT(ledger_.used(), resumable ? used + 4 * fakes_.options.vocab_size : 0);
    used = ledger_.used();
    fakes_.control->Resume();
    EXPECT_TRUE(open.Join().status.ok());
  }
}

TEST_F(CallTest, TheIdsOfOutputsThatPenaltiesNeedAreCharged) {
  int64_t without = 0;
  for (const bool penalties : {false, true}) {
    v1::GenerateRequest request = Prompt("abc", 1'000'000);
    if (penalties) request.mutable_sampling()->set_presence_penalty(1);
    fakes_.control->Hold();
    Open open = Start<Generate>(request);
    fakes_.control->WaitUntilBlocked();
    if (penalties) {
      EXPECT_GE(ledger_.used(), without + 4'000'000);
    } else {
      without = ledger_.used();
    }
    open.call->Cancel(absl::CancelledError("gone"));
    fakes_.control->Resume();
    EXPECT_EQ(open.Join().status.code(), absl::StatusCode::kCancelled);
  }
}

TEST_F(CallTest, AStateThatIsTooLargeForItsBudgetIsRefusedForGood) {
  StatesConfig config;
  config.max_bytes = 2000;
  config.max_client_bytes = 1000;
  const std::unique_ptr<StateAccess> states = OpenStates(config, metrics_.states);
  const auto environment = EnvironmentWith(ledger_, limits_, *states);
  v1::GenerateRequest request = Prompt("abc", 500);
  request.mutable_store();
  Open open = StartIn<Generate>(*environment, request);
  EXPECT_THAT(open.Join().status, StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("states.max_client_bytes=1000")));
  EXPECT_FALSE(open.call->ending().retry_after.has_value());
}

TEST_F(CallTest, AStreamThatNoClientCanResumeLeavesNoResumePoint) {
  StatesConfig config;
  config.checkpoint_tokens = 4;
  states_ = OpenStates(config, metrics_.states);
  environment_ = EnvironmentWith(ledger_, limits_, *states_);
  v1::GenerateRequest request = Prompt("abc", 1'000'000);
  request.set_resumable(true);
  fakes_.control->Hold();
  Open open = Start<Generate>(request);
  fakes_.control->RunSteps(20);
  open.carrier->WaitForMessages(2);
  while (metrics_.states.checkpoints_written.Value() == 0) std::this_thread::yield();
  open.call->OnClient(Named("ada", {"encoder"}));
  fakes_.control->Resume();
  EXPECT_EQ(open.Join().status.code(), absl::StatusCode::kPermissionDenied);
  while (metrics_.states.states.Value() > 0) std::this_thread::yield();
}

TEST_F(CallTest, AStateThatTheRequestBringsIsCharged) {
  v1::GenerateRequest request = Prompt("abc", 5);
  request.mutable_store();
  Open open = Start<Generate>(request);
  EXPECT_TRUE(open.Join().status.ok());
  v1::Previous previous;
  previous.set_state_id(open.Messages<v1::GenerateResponse>().back().finished().state().id());
  SequenceState large;
  states_->Find(*client_, previous, [&](const auto& found) { large = **found; });
  large.note = std::string(size_t{1} << 20, 'n');
  request.clear_store();
  request.mutable_previous()->set_state(*states_->sealer().Seal(large));
  fakes_.control->Hold();
  Open next = Start<Generate>(request);
  fakes_.control->WaitUntilBlocked();
  EXPECT_GE(ledger_.used(), StateBytes(large));
  fakes_.control->Resume();
  EXPECT_TRUE(next.Join().status.ok());
}

// Every call ends with an expected status and no memory stays charged, in any order of events.
TEST_F(CallTest, CallsThatEndInAllWaysAtOnce) {
  TestRandom random;
  for (int round = 0; round < 15; ++round) {
    std::vector<Open> calls;
    for (int i = 0; i < 12; ++i) {
      const auto n = static_cast<uint32_t>(1 + random.Below(3));
      v1::GenerateRequest request = Prompt("abc", static_cast<uint32_t>(1 + random.Below(60)), n);
      if (random.Below(3) == 0) request.mutable_store();
      calls.push_back(random.Below(2) == 0 ? Start<Complete>(request) : Start<Generate>(request));
    }
    std::vector<std::thread> clients;
    for (Open& open : calls) {
      const int64_t fate = random.Below(4);
      clients.emplace_back([&open, fate] {
        if (fate == 0) open.call->Cancel(absl::CancelledError("the client left"));
        if (fate == 1) open.call->OnClient(Named("ada", {"encoder"}));
      });
    }
    for (std::thread& client : clients) client.join();
    for (Open& open : calls) {
      const absl::StatusCode code = open.Join().status.code();
      EXPECT_TRUE(code == absl::StatusCode::kOk || code == absl::StatusCode::kCancelled ||
                  code == absl::StatusCode::kResourceExhausted ||
                  code == absl::StatusCode::kPermissionDenied)
          << open.call->ending().status;
    }
  }
}

}  // namespace
}  // namespace aft::server
