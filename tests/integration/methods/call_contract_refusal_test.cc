// What every call guarantees when it is refused, for each method and carrier, over real gRPC and
// HTTP with fake models.
//
// Methods differ in these points today:
//   a model for other methods   aft.v1 answers FAILED_PRECONDITION and names the methods that the
//                               model serves. The Open Inference Protocol has only tensors instead
//                               of methods, so INVALID_ARGUMENT names a tensor that is missing or
//                               that is no input of the model
//   the retry hint              comes with every RESOURCE_EXHAUSTED of a call that has not begun,
//                               except for requests of a ModelStreamInfer, which have no metadata.
//                               For a message that is too large it is -1: the client must not retry
//
// HTTP differs in these points, by its nature or by OpenAI's API:
//   errors                      have a name for each gRPC code that occurs. Some share a status:
//                               INVALID_ARGUMENT and FAILED_PRECONDITION are 400. Messages begin
//                               with the API's fields. An error in a stream is its last event
//   headers                     belong to an answer or a refusal, as metadata is initial or
//                               trailing. retry-after-ms is the retry hint. x-should-retry says
//                               that a retry makes no sense. Failed calls have no usage or timings
//   a stream                    that fails before its head is sent gets an error page too
//   a full queue                is noticed after the body is parsed, since the model may stand
//                               anywhere in it. A bad body gets the error of its field instead
//   the client's deadline       does not exist, so DeadlineContractTest covers only gRPC
//   a cancellation              means that the client closes the connection
//   a body that never arrives   makes no call. If it is too large (413) or too slow (408), the
//                               refusal has a log line. If the client leaves, there is none
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/methods/call_contract_fixture.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class RefusalContractTest : public ContractTest {
 protected:
  double Rejected(const std::string& reason) {
    return server_->Metric(OfModel("aft_rejected_total", absl::StrCat(",reason=\"", reason, "\"")));
  }
  // Checks the retry hint of a call that was refused for lack of space. gRPC waits for that time.
  static void ExpectRetryHint(const ContractCall& call, const std::string& milliseconds) {
    EXPECT_EQ(call.Trailing("grpc-retry-pushback-ms"),
              GetParam().infer_stream() ? "" : milliseconds);
  }
};
// All cases, including those that no engine answers.
class AnyRefusalContractTest : public RefusalContractTest {};

INSTANTIATE_TEST_SUITE_P(All, RefusalContractTest, testing::ValuesIn(EngineCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(All, AnyRefusalContractTest, testing::ValuesIn(AllCases()), CaseName);

TEST_P(RefusalContractTest, AFullQueueRefusesBeforeTheMessageIsParsed) {
  Start();
  ContractCall running = OpenHeld();
  ContractCall waiting = Open();
  WaitUntilWaiting(GetParam().sequences);
  const double held = server_->Metric(kMemoryUsed);
  const Ask unparsed = GetParam().http() ? Ask::kShort : Ask::kBad;
  for (const Ask ask : {Ask::kShort, unparsed}) {
    ContractCall refused = Open(ask);
    ExpectRefused(refused, absl::StatusCode::kResourceExhausted,
                  HasSubstr(absl::StrCat("max_queued_requests=", GetParam().sequences)));
    // As many sequences wait as there are slots, and until a call has ended, one is assumed to run
    // for a second.
    ExpectRetryHint(refused, "500");
  }
  server_->WaitForMetric(kMemoryUsed, held);
  EXPECT_EQ(Calls("RESOURCE_EXHAUSTED"), 2);
  EXPECT_EQ(Rejected("queued_requests"), 2);
  EXPECT_EQ(Rejected("invalid"), 0);
  gate().Resume();
  ExpectAnswered(running);
  ExpectAnswered(waiting);
}

// Beside three watches of health, the budget has space for all charges of a call except its
// message. The stream of a ModelStreamInfer is a call of its own and takes that space.
TEST_P(AnyRefusalContractTest, AFullBudgetRefuses) {
  config_.limits.max_memory_bytes = config_.limits.max_client_memory_bytes = 4 * kCall;
  config_.limits.max_message_bytes = 8 << 20;
  refuses_all_ = true;
  Start();
  EXPECT_EQ(server_->Metric("aft_memory_limit_bytes"), 4 * kCall);
  std::deque<HealthWatch> watches;
  for (int i = 0; i < 3; ++i) ASSERT_NE(watches.emplace_back(*server_).Next(), HealthWatch::kEnd);
  int refused = 0;
  for (const Ask ask : {Ask::kShort, Ask::kBad}) {  // kBad is not parsed
    ContractCall call = Open(ask);
    // The text that is too long for Tokenize is larger than the whole budget.
    if (ask == Ask::kBad && absl::EndsWith(GetParam().method, "okenize") &&
        !absl::EndsWith(GetParam().method, "etokenize")) {
      ExpectRefused(call, absl::StatusCode::kInvalidArgument,
                    HasSubstr("more than max_client_memory_bytes"));
      EXPECT_EQ(call.Trailing("grpc-retry-pushback-ms"), "");
      server_->WaitForMetric(kMemoryUsed, 3 * kCall);
      continue;
    }
    ++refused;
    ExpectRefused(call, absl::StatusCode::kResourceExhausted,
                  AllOf(StartsWith("memory: "), HasSubstr("max_client_memory_bytes"),
                        HasSubstr("max_memory_bytes")));
    // The shortest time, because no call waits.
    ExpectRetryHint(call, "100");
    server_->WaitForMetric(kMemoryUsed, 3 * kCall);  // the space for the next call
  }
  EXPECT_EQ(server_->Metric("aft_memory_refused_total"), refused);
  EXPECT_EQ(server_->Metric("aft_rejected_total"), 0);
  EXPECT_EQ(server_->Metric(absl::StrCat("aft_requests_total{code=\"RESOURCE_EXHAUSTED\",method=\"",
                                         GetParam().method, "\"}")),
            refused);
  EXPECT_EQ(server_->control().step_count(), 0);
  for (HealthWatch& watch : watches) {
    watch.Cancel();
    watch.Finish();
  }
  server_->WaitForMetric(kMemoryUsed, 0);
}

TEST_P(RefusalContractTest, ACallIsChargedWhileItRunsAndWhileItWaits) {
  Start();
  ContractCall running = OpenHeld();
  const double one = server_->Metric(kMemoryUsed);
  // A stream of requests is charged in addition to its request. The cost of a further sequence
  // differs.
  EXPECT_GT(one, (GetParam().infer_stream() ? 2 : 1) * kCall);
  EXPECT_LT(one, 4 * kCall);
  ContractCall waiting = Open();
  WaitUntilWaiting(GetParam().sequences);
  server_->WaitForMetric(kMemoryUsed, 2 * one);
  gate().Resume();
  ExpectAnswered(running);
  ExpectAnswered(waiting);
}

// An encoder's answer is charged as a whole before any work. If it can never fit into the budget, a
// retry makes no sense.
TEST_P(RefusalContractTest, AnAnswerThatCanNeverFitIsABadRequest) {
  if (!GetParam().encoder()) return;  // others are charged while they are generated
  config_.limits.max_memory_bytes = config_.limits.max_client_memory_bytes = 300'000;
  encoder_options_.width = 20'000;
  refuses_all_ = true;
  Start();
  ContractCall call = Open();
  const std::string texts = GetParam().texts();
  ExpectRefused(call, absl::StatusCode::kInvalidArgument,
                AllOf(StartsWith(texts.empty() ? "the request and its answer would take "
                                               : texts + ": they and their answers would take "),
                      HasSubstr("max_memory_bytes")));
  EXPECT_EQ(call.Trailing("grpc-retry-pushback-ms"), "");
  EXPECT_EQ(Rejected("invalid"), 1);
  EXPECT_EQ(server_->Metric("aft_memory_refused_total"), 0);
  EXPECT_EQ(server_->encoder_control().batches().size(), 0U);
}

TEST_P(AnyRefusalContractTest, AnUnknownModelIsNotFoundAndTheErrorNamesTheOthers) {
  Start();
  ContractCall call = Open(Ask::kShort, {}, "unknown");
  ExpectRefused(call, absl::StatusCode::kNotFound,
                AllOf(HasSubstr("\"unknown\""), HasSubstr("\"fake\""), HasSubstr("\"encoder\"")));
  EXPECT_EQ(server_->Metric(RequestsTotal("NOT_FOUND", GetParam().method, "")), 1);
  EXPECT_EQ(LineOf(call)["model"], "unknown");
}

TEST_P(RefusalContractTest, AModelForOtherMethodsIsRefused) {
  if (GetParam().encoder() && !GetParam().infer()) return;  // all with a tokenizer do
  Start();
  const std::string other = GetParam().encoder() ? "fake" : "encoder";
  ContractCall call = Open(Ask::kShort, {}, other);
  if (GetParam().infer()) {
    const char* const why = GetParam().encoder() ? "text_input: must " : "is no input of model";
    ExpectRefused(call, absl::StatusCode::kInvalidArgument, HasSubstr(why));
  } else {
    ExpectRefused(
        call, absl::StatusCode::kFailedPrecondition,
        absl::StrCat("model \"encoder\" is an encoder: it serves ",
                     absl::StartsWith(GetParam().path, "/v1/") ? "POST /v1/embeddings" : "Encode",
                     ", not ", GetParam().method));
  }
  EXPECT_EQ(
      server_->Metric(absl::StrCat("aft_rejected_total{model=\"", other, "\",reason=\"invalid\"}")),
      1);
}

// The queue is full of team-b's calls, and the refused messages are not parsed. So the refusal
// takes no place and says nothing about the model's state.
TEST_P(RefusalContractTest, AForbiddenModelIsRefusedBeforeItTakesAPlace) {
  KnowTeamA("token a", "models: 'other'");
  Start();
  gate().Hold();
  ContractCall running = Open(Ask::kShort, AsTeamB());
  gate().WaitUntilBlocked();
  ContractCall waiting = Open(Ask::kShort, AsTeamB());
  WaitUntilWaiting(GetParam().sequences);
  for (const Ask ask : {Ask::kShort, Ask::kBad}) {
    ContractCall call = Open(ask, AsTeamA());
    ExpectRefused(call, absl::StatusCode::kPermissionDenied,
                  absl::StrCat("client \"team-a\" may not use model \"", GetParam().model, "\""));
    EXPECT_EQ(LineOf(call)["client"], "team-a");
  }
  gate().Resume();
  ExpectAnswered(running);
  ExpectAnswered(waiting);
  EXPECT_EQ(Calls("PERMISSION_DENIED"), 2);
  EXPECT_EQ(server_->Metric("aft_rejected_total"), 0);
  // The answer is the same for a model that the server does not have.
  ContractCall unknown = Open(Ask::kShort, AsTeamA(), "unknown");
  ExpectRefused(unknown, absl::StatusCode::kPermissionDenied,
                "client \"team-a\" may not use model \"unknown\"");
}

TEST_P(AnyRefusalContractTest, AnUnknownClientIsUnauthenticated) {
  KnowTeamA("token a", "");
  Start();
  ContractCall call = Open();
  IsRefused(call);
  ExpectEnd(call, absl::StatusCode::kUnauthenticated, StartsWith("authorization: "));
  EXPECT_EQ(call.Trailing("x-request-id"), call.id());
  EXPECT_EQ(call.Initial("x-request-id"), "");
  EXPECT_EQ(server_->Metric(RequestsTotal("UNAUTHENTICATED", GetParam().method, "")), 1);
}

// All threads of the decode pool are busy with calls of team-b.
class UndecodedContractTest : public ContractTest {
 protected:
  void Start() {
    KnowTeamA("token a", "");
    ContractTest::Start();
    held_ = HoldDecoding();
  }
  void Decode() { ResumeDecoding(held_); }

  std::vector<ContractCall> held_;
};
class LongUndecodedContractTest : public UndecodedContractTest {};

INSTANTIATE_TEST_SUITE_P(All, UndecodedContractTest, testing::ValuesIn(AllCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(All, LongUndecodedContractTest, testing::ValuesIn(LongCases()), CaseName);

TEST_P(UndecodedContractTest, ACallIsRefusedWhenItsClientIsRemovedBeforeParsing) {
  Start();
  gate().Hold();
  const double before = server_->Metric(kMemoryUsed);
  ContractCall call = Open(Ask::kShort, AsTeamA());
  const int calls = GetParam().infer_stream() ? 2 : 1;
  WaitUntil([&] { return server_->Metric(kMemoryUsed) >= before + calls * kCall; });
  KnowTeamA("another token", "");
  Decode();
  IsRefused(call);
  ExpectEnd(call, absl::StatusCode::kUnauthenticated, "authorization: unknown token");
  EXPECT_EQ(server_->control().step_count(), 0);
  EXPECT_EQ(server_->encoder_control().batches().size(), 0U);
}

// The server may notice the cancellation before or after the engine gets the call.
TEST_P(LongUndecodedContractTest, ACallCancelledBeforeParsingEnds) {
  Start();
  gate().Hold();
  ContractCall call = Open(Ask::kLong, AsTeamA());
  const double held = kDecodeThreads * kCall;
  WaitUntil([&] { return server_->Metric(kMemoryUsed) >= held + kCall; });
  call.Cancel();
  EXPECT_EQ(call.Finish().status.error_code(), grpc::StatusCode::CANCELLED);
  Decode();
  times_unsure_ = true;
  EXPECT_EQ(StepUntilLineOf(call)["code"], "CANCELLED");
}

}  // namespace
}  // namespace aft::server
