// What every call guarantees about its end, for each method and carrier, over real gRPC and HTTP
// with fake models.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/methods/call_contract_fixture.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

INSTANTIATE_TEST_SUITE_P(All, ContractTest, testing::ValuesIn(EngineCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(All, LongContractTest, testing::ValuesIn(LongCases()), CaseName);

TEST_P(LongContractTest, ACancelledRunningCallFreesItsSlotsAndEndsNoOtherCall) {
  config_.models[0].slots += GetParam().sequences;
  config_.scheduling.max_client_slots = config_.models[0].slots;
  config_.limits.max_stream_buffer_bytes = 1 << 30;  // the neighbour's answer is not read
  Start();
  ContractCall neighbour = OpenFiller();
  ContractCall call = Open(Ask::kLong);
  const double both = 2.0 * GetParam().sequences;
  WaitUntil([&] {
    gate().AllowSteps(1);
    return server_->Metric(OfModel("aft_slots_used")) == both;
  });
  call.Cancel();
  EXPECT_EQ(call.Finish().status.error_code(), grpc::StatusCode::CANCELLED);
  call.WaitUntilRead();
  const LogLine line = StepUntilLineOf(call);
  EXPECT_EQ(line["code"], "CANCELLED");
  EXPECT_EQ(Calls("CANCELLED"), 1);
  WaitUntil([&] {
    gate().AllowSteps(1);
    return server_->Metric(OfModel("aft_slots_used")) == both / 2;
  });
  EXPECT_TRUE(neighbour.Next());
  neighbour.Cancel();
  neighbour.Finish();
  EXPECT_EQ(StepUntilLineOf(neighbour)["code"], "CANCELLED");
}

TEST_P(ContractTest, ACancelledWaitingCallLeavesTheQueueAndEndsNoOtherCall) {
  config_.limits.max_queued_requests = 2 * kFillerTexts;
  config_.scheduling.max_client_queued_requests = 2 * kFillerTexts;
  config_.limits.max_stream_buffer_bytes = 1 << 30;  // the filler's answer is not read
  Start();
  ContractCall filler = OpenFiller();
  const double before = server_->Metric(OfModel("aft_requests_waiting"));
  ContractCall call = Open();
  WaitUntilWaiting(before + GetParam().sequences);
  call.Cancel();
  EXPECT_EQ(call.Finish().status.error_code(), grpc::StatusCode::CANCELLED);
  call.WaitUntilRead();
  const LogLine line = StepUntilLineOf(call);
  EXPECT_EQ(line["code"], "CANCELLED");
  EXPECT_GT(line.Number("queue_ms"), 0);
  EXPECT_EQ(line["prefill_ms"], "0");
  EXPECT_EQ(line["decode_ms"], "0");
  EXPECT_EQ(line["ttft_ms"], "0");
  EXPECT_EQ(Calls("CANCELLED"), 1);
  EXPECT_TRUE(filler.Next());
  gate().Resume();
  if (!GetParam().encoder()) filler.Cancel();
  EXPECT_EQ(filler.Finish().status.ok(), GetParam().encoder());
}

TEST_P(LongContractTest, TheServersLimitEndsACallThatRuns) {
  config_.limits.max_request = std::chrono::milliseconds(30);
  // A slow reader must not be the reason.
  config_.limits.max_stream_buffer_bytes = 1 << 30;
  refuses_all_ = true;  // on a slow machine a further call would exceed the limit
  Start();
  gate().Hold();
  ContractCall call = Open(Ask::kLong);
  // It has arrived. On a slow machine it may be over already.
  WaitUntil([&] { return server_->Metric(kMemoryUsed) > 0 || Calls("DEADLINE_EXCEEDED") > 0; });
  const auto over = std::chrono::steady_clock::now() + config_.limits.max_request;
  while (std::chrono::steady_clock::now() < over) std::this_thread::yield();
  gate().Resume();
  ExpectEnd(call, absl::StatusCode::kDeadlineExceeded,
            "it took longer than limits.max_request_ms=30");
  if (GetParam().carrier == CarrierKind::kHttp) {  // OpenAI's clients send a 504 again
    EXPECT_EQ(call.Trailing("x-should-retry"), "false");
  }
  EXPECT_EQ(Calls("DEADLINE_EXCEEDED"), 1);
}

// If the call arrives too late, the server counts it as cancelled or never sees it. Then a longer
// deadline is tried. `arrived` returns whether the server has the call.
class DeadlineContractTest : public ContractTest {
 protected:
  void ExpectTheDeadlineToEnd(Ask ask, const std::function<bool()>& arrived) {
    double ended = 0;
    for (auto patience = std::chrono::milliseconds(400); ended == 0; patience *= 2) {
      ASSERT_LE(patience, std::chrono::seconds(30));
      gate().Hold();
      const auto deadline = std::chrono::system_clock::now() + patience;
      ContractCall call = Open(ask, {.headers = {}, .deadline = deadline});
      bool has = false;
      while (!has && std::chrono::system_clock::now() < deadline) has = arrived();
      EXPECT_EQ(call.Finish().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
      // Without this wait the engine, which checks the clock itself, would usually end the call
      // first.
      call.WaitUntilRead();
      if (has) {
        const LogLine line = StepUntilLineOf(call);
        EXPECT_THAT(line["code"], AnyOf("DEADLINE_EXCEEDED", "CANCELLED"));
      } else {  // the call may not even have arrived
        unsure_.insert(call.id());
        times_unsure_ = true;
        gate().AllowSteps(1);
      }
      ended = Calls("DEADLINE_EXCEEDED");
    }
  }
};
class LongDeadlineContractTest : public DeadlineContractTest {};

INSTANTIATE_TEST_SUITE_P(All, DeadlineContractTest, testing::ValuesIn(OverGrpc(EngineCases())),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(All, LongDeadlineContractTest, testing::ValuesIn(OverGrpc(LongCases())),
                         CaseName);

// The filler belongs to another client. If the call waited after 400 texts of its own client and
// after held steps, the server would refuse it because it could not meet the deadline.
TEST_P(DeadlineContractTest, TheClientsDeadlineEndsACallThatWaits) {
  config_.limits.max_queued_requests = 2 * kFillerTexts;
  config_.scheduling.max_client_queued_requests = 2 * kFillerTexts;
  config_.security.trusted_proxies = {"127.0.0.0/8"};
  Start();
  ContractCall filler = OpenFiller({.headers = {{"x-forwarded-for", "203.0.113.1"}}});
  double before = server_->Metric(OfModel("aft_requests_waiting"));
  ExpectTheDeadlineToEnd(Ask::kShort, [&] {
    // The number of waiting texts of an encoder's filler falls with each step.
    const double now = server_->Metric(OfModel("aft_requests_waiting"));
    before = std::min(before, now);
    return now == before + GetParam().sequences;
  });
  EXPECT_TRUE(filler.Next());
  gate().Resume();
  if (!GetParam().encoder()) filler.Cancel();
  EXPECT_EQ(filler.Finish().status.ok(), GetParam().encoder());
}

TEST_P(LongDeadlineContractTest, TheClientsDeadlineEndsACallThatRuns) {
  Start();
  ExpectTheDeadlineToEnd(Ask::kLong, [this] {
    return server_->Metric(OfModel("aft_slots_used")) == GetParam().sequences;
  });
}

TEST_P(ContractTest, AFailedStepShowsOnlyTheRequestsIdToTheClient) {
  Start();
  ContractCall call = OpenHeld();
  FailNextStep(absl::InternalError("secret pointer 0xdead"));
  gate().Resume();
  // A call with several texts names the failed one.
  const std::string texts = GetParam().texts();
  const std::string text = texts.empty() ? "" : texts + "[0]: ";
  ExpectEnd(call, absl::StatusCode::kInternal, text + "internal error; request id " + call.id());
  EXPECT_EQ(Calls("INTERNAL"), 1);
  const LogLine line = LineOf(call);
  EXPECT_EQ(line["level"], "error");
  EXPECT_THAT(line["reason"], StartsWith(text + "request " + call.id()));
  EXPECT_THAT(line["reason"], Not(HasSubstr("secret")));
  EXPECT_THAT(log_.Text(), HasSubstr("secret pointer 0xdead"));
}

TEST_P(ContractTest, ADrainFinishesRunningCallsAndEndsWaitingOnes) {
  Start();
  ContractCall running = OpenHeld();
  ContractCall waiting = Open();
  WaitUntilWaiting(GetParam().sequences);
  std::thread drain([this] { EXPECT_TRUE(server_->server().Drain()); });
  server_->WaitForMetric(OfModel("aft_model_state", ",state=\"draining\""), 1);
  EXPECT_EQ(server_->server().lifecycle(), Lifecycle::kDraining);
  EXPECT_EQ(server_->Metric("aft_draining"), 1);
  ContractCall late = Open();
  EXPECT_FALSE(late.Finish().status.ok());
  unsure_.insert(late.id());
  gate().Resume();
  ExpectAnswered(running);
  const ContractCall::End end = waiting.Finish();
  if (GetParam().infer_stream()) {
    EXPECT_EQ(end.error_id, waiting.id());
  } else {
    EXPECT_EQ(end.status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(waiting.Initial("x-request-id"), "") << "gRPC would not try it again";
    EXPECT_EQ(waiting.Trailing("x-request-id"), waiting.id());
    EXPECT_EQ(waiting.Trailing("aft-usage-bin"), "");
  }
  EXPECT_EQ(end.responses, 0);
  EXPECT_EQ(LineOf(waiting)["code"], "UNAVAILABLE");
  EXPECT_EQ(LineOf(running)["code"], "OK");
  drain.join();
  EXPECT_EQ(server_->server().lifecycle(), Lifecycle::kStopped);
  drained_ = true;
}

TEST_P(LongContractTest, ACallEndsWhenItsClientLosesTheModel) {
  ContractCall call = OpenAndChangeTeamA(Ask::kLong, "models: 'other'");
  ExpectEnd(call, absl::StatusCode::kPermissionDenied,
            "client \"team-a\" may not use model \"fake\"");
  EXPECT_EQ(Calls("PERMISSION_DENIED"), 1);
}

TEST_P(LongContractTest, ACallContinuesWhenItsClientKeepsTheModel) {
  ContractCall call = OpenAndChangeTeamA(Ask::kShort, "models: 'fake' weight: 2");
  ExpectAnswered(call);
}

// The client is removed while the engine is in its first step and has not yet taken the waiting
// call.
TEST_P(ContractTest, AWaitingCallEndsWhenItsClientIsRemoved) {
  KnowTeamA("token a", "");
  Start();
  gate().Hold();
  ContractCall running = Open(Ask::kShort, AsTeamA());
  gate().WaitUntilBlocked();
  ContractCall waiting = Open(Ask::kShort, AsTeamA());
  WaitUntilWaiting(GetParam().sequences);
  WaitUntilDecoded();
  KnowTeamA("another token", "");
  gate().Resume();
  ExpectEnd(waiting, absl::StatusCode::kUnauthenticated, "authorization: unknown token");
  // Even if the step was the call's last one, its result is dropped.
  ExpectEnd(running, absl::StatusCode::kUnauthenticated, "authorization: unknown token");
  EXPECT_EQ(Calls("UNAUTHENTICATED"), 2);
}

// A stream ends if its client reads slower than the model generates. A call with one answer ends if
// the answer is larger than allowed. The client first reads what has already been sent.
TEST_P(LongContractTest, ACallWithAnUnreadAnswerEndsAndOthersAreServed) {
  config_.limits.max_stream_buffer_bytes = 64 << 10;
  config_.limits.write_stall = std::chrono::hours(1);
  Start();
  ContractCall call = OpenUnread(Ask::kLong);
  const std::string ended = OfModel("aft_request_finished_total", ",reason=\"slow_client\"");
  WaitUntil([&] { return server_->Metric(ended) > 0; });
  server_->WaitForMetric(OfModel("aft_slots_used"), 0);
  ExpectNeighbourIsServed();
  const bool whole =
      GetParam().carrier == CarrierKind::kUnary || GetParam().carrier == CarrierKind::kHttp;
  const char* const why = GetParam().streams() ? "slow client: it reads slower than the model"
                          : whole              ? "the answer is larger than max_stream_buffer_bytes"
                                  : "the answer is longer than limits.max_stream_buffer_bytes";
  // Scores are no stream of tokens, so an advice to ask for one would only lead to another error.
  const bool scores = std::string(GetParam().name) == "InferScoring";
  ExpectEnd(call, absl::StatusCode::kResourceExhausted,
            AllOf(StartsWith(why), HasSubstr(scores ? "; Score of aft.v1 streams" : ""),
                  Not(HasSubstr(scores ? "stream of tokens" : "; Score of aft.v1"))));
  EXPECT_EQ(Calls("RESOURCE_EXHAUSTED"), 1);
  EXPECT_EQ(call.Initial("x-request-id") + call.Trailing("x-request-id"), call.id());
  // gRPC does not retry a call that has begun to answer, so a stream needs no hint. A call with one
  // answer has the hint -1, and so does a stream over HTTP that has sent nothing.
  const bool page = GetParam().http() && call.Initial("x-request-id").empty();
  EXPECT_EQ(call.Trailing("grpc-retry-pushback-ms"),
            whole || page || GetParam().carrier == CarrierKind::kInfer ? "-1" : "");
  const bool usage = !GetParam().infer_stream() && !GetParam().http();
  EXPECT_EQ(call.Trailing("aft-usage-bin") != "", usage);
  EXPECT_EQ(call.Trailing("aft-timings-bin") != "", usage);
}

TEST_P(LongContractTest, ACallEndsWhenItsAnswerFillsTheMemory) {
  config_.limits.max_memory_bytes = config_.limits.max_client_memory_bytes = 1'000'000;
  config_.limits.max_stream_buffer_bytes = 1 << 30;
  config_.limits.write_stall = std::chrono::hours(1);
  const bool small = std::string(GetParam().name) == "InferScoring";
  if (small) config_.limits.max_memory_bytes = config_.limits.max_client_memory_bytes = 500'000;
  Start();
  ContractCall call = OpenUnread(Ask::kLong);
  const std::string ended = OfModel("aft_request_finished_total", ",reason=\"error\"");
  WaitUntil([&] { return server_->Metric(ended) > 0; });
  server_->WaitForMetric(OfModel("aft_slots_used"), 0);
  EXPECT_EQ(server_->Metric("aft_memory_refused_total"), 1);
  ExpectEnd(call, absl::StatusCode::kResourceExhausted,
            StartsWith("memory: no room for an answer that is not "));
}

// All that the call held is released while the client still does not read.
TEST_P(ContractTest, ACallIsCancelledWhenItsClientNeverReads) {
  // Over HTTP it is also the time in which the request's head must arrive.
  config_.limits.write_stall = std::chrono::milliseconds(GetParam().http() ? 500 : 50);
  config_.limits.max_stream_buffer_bytes = 1 << 30;
  encoder_options_.width = 20'000;
  // A further call would need a client that reads within write_stall.
  refuses_all_ = true;
  Start();
  const bool endless = GetParam().streams() && GetParam().generates();
  ContractCall call = OpenUnread(endless ? Ask::kLong : Ask::kLarge);
  server_->WaitForMetric("aft_stuck_calls_total", 1);
  server_->WaitForMetric(kMemoryUsed, 0);
  server_->WaitForMetric(OfModel("aft_slots_used"), 0);
  const LogLine line = LineOf(call);
  if (endless) {
    EXPECT_EQ(line["code"], "RESOURCE_EXHAUSTED");
    EXPECT_THAT(line["reason"], StartsWith("slow client: it did not read"));
  }
  ASSERT_THAT(log_.Lines("request.stuck"), testing::SizeIs(1));
  const LogLine stuck = log_.Lines("request.stuck").front();
  EXPECT_EQ(stuck["id"], call.id());
  EXPECT_EQ(stuck["method"], GetParam().method);
  EXPECT_EQ(stuck["trace_id"], line["trace_id"]);
  EXPECT_FALSE(call.Finish().status.ok());
}

}  // namespace
}  // namespace aft::server
