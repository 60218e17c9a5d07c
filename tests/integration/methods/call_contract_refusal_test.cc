// What every call promises when it is refused, whatever its method and carrier, over real gRPC and
// HTTP with fake models.
//
// Where methods differ today:
//   a model for other methods   aft.v1: FAILED_PRECONDITION, and which it serves. The Open
//   Inference
//                               Protocol has no methods but tensors: INVALID_ARGUMENT names one
//                               that is no input of the model, or that is missing
//   an unknown client, or an    aft.v1: a line of the log. ModelInfer: none. Of a ModelStreamInfer
//   id that is none             there is no request yet
//   retry hint                  with every RESOURCE_EXHAUSTED of a call that has not begun, but for
//                               the requests of a ModelStreamInfer, which have no metadata
//
// Where HTTP differs, by its nature or by OpenAI's API:
//   errors                      have a name for each code of gRPC that occurs, but share statuses:
//                               400 is INVALID_ARGUMENT and FAILED_PRECONDITION. Messages begin
//                               with the API's fields. An error within a stream is its last event
//   headers                     are those of an answer or of a refusal, as metadata is initial or
//                               trailing. retry-after-ms is the retry hint, and x-should-retry says
//                               that none makes sense. Usage and timings of what failed are absent
//   a stream                    is refused by a page, too, where it fails before its head is sent
//   a full queue                shows once the body is parsed, since a model may stand anywhere in
//                               it: of a bad body, what is wrong with it is told instead
//   the client's deadline       does not exist, so DeadlineContractTest is of gRPC alone
//   a cancel                    is that the client closes the connection
//   a body that never is there  makes no call: too large (413) and too slow (408) are refusals that
//                               have a line; left makes none
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
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
  // Of a call that has been refused for want of room. gRPC waits so long.
  static void ExpectRetryHint(const ContractCall& call) {
    int ms = 0;
    const std::string hint = call.Trailing("grpc-retry-pushback-ms");
    EXPECT_EQ(absl::SimpleAtoi(hint, &ms), !GetParam().infer_stream()) << hint;
    EXPECT_GE(ms, GetParam().infer_stream() ? 0 : 100);
  }
};
// Of calls that no engine answers too.
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
    ExpectRetryHint(refused);
  }
  server_->WaitForMetric(kMemoryUsed, held);
  EXPECT_EQ(Calls("RESOURCE_EXHAUSTED"), 2);
  EXPECT_EQ(Rejected("queued_requests"), 2);
  EXPECT_EQ(Rejected("invalid"), 0);
  gate().Resume();
  ExpectAnswered(running);
  ExpectAnswered(waiting);
}

// There is room for all that a call is charged but its message; of a ModelStreamInfer the stream is
// a call of its own, and has that room.
TEST_P(AnyRefusalContractTest, AFullBudgetRefuses) {
  config_.limits.max_memory_bytes = config_.limits.max_client_memory_bytes = kCall;
  config_.limits.max_message_bytes = 8 << 20;
  refuses_all_ = true;
  Start();
  EXPECT_EQ(server_->Metric("aft_memory_limit_bytes"), kCall);
  for (const Ask ask : {Ask::kShort, Ask::kBad}) {  // which is not parsed
    ContractCall call = Open(ask);
    ExpectRefused(call, absl::StatusCode::kResourceExhausted,
                  AllOf(StartsWith("memory: "), HasSubstr("max_client_memory_bytes"),
                        HasSubstr("max_memory_bytes")));
    ExpectRetryHint(call);
    server_->WaitForMetric(kMemoryUsed, 0);  // the next one's room
  }
  EXPECT_EQ(server_->Metric("aft_memory_refused_total"), 2);
  EXPECT_EQ(server_->Metric("aft_rejected_total"), 0);
  EXPECT_EQ(server_->Metric(absl::StrCat("aft_requests_total{code=\"RESOURCE_EXHAUSTED\",method=\"",
                                         GetParam().method, "\"}")),
            2);
  EXPECT_EQ(server_->control().step_count(), 0);
  server_->WaitForMetric(kMemoryUsed, 0);
}

TEST_P(RefusalContractTest, ACallIsChargedWhileItRunsAndWhileItWaits) {
  Start();
  ContractCall running = OpenHeld();
  const double one = server_->Metric(kMemoryUsed);
  // A stream of requests is charged beside its request; what a sequence more costs differs.
  EXPECT_GT(one, (GetParam().infer_stream() ? 2 : 1) * kCall);
  EXPECT_LT(one, 4 * kCall);
  ContractCall waiting = Open();
  WaitUntilWaiting(GetParam().sequences);
  server_->WaitForMetric(kMemoryUsed, 2 * one);
  gate().Resume();
  ExpectAnswered(running);
  ExpectAnswered(waiting);
}

// An encoder's answer is charged as a whole before any work, so it may be that it never has room.
// Then a retry makes no sense.
TEST_P(RefusalContractTest, AnAnswerThatNeverHasRoomIsABadRequest) {
  if (!GetParam().encoder()) return;  // the others' answers are charged as they come to be
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

TEST_P(AnyRefusalContractTest, AnUnknownModelIsNotFoundAndTheAnswerNamesTheOnesThereAre) {
  Start();
  ContractCall call = Open(Ask::kShort, {}, "nobody");
  ExpectRefused(call, absl::StatusCode::kNotFound,
                AllOf(HasSubstr("\"nobody\""), HasSubstr("\"fake\""), HasSubstr("\"encoder\"")));
  EXPECT_EQ(server_->Metric(RequestsTotal("NOT_FOUND", GetParam().method, "")), 1);
  EXPECT_EQ(LineOf(call)["model"], "nobody");
}

TEST_P(AnyRefusalContractTest, ABadFieldIsNamedAndCounted) {
  config_.limits.max_message_bytes = 8 << 20;
  Start();
  ContractCall call = Open(Ask::kBad);
  ExpectRefused(call, absl::StatusCode::kInvalidArgument, GetParam().bad_field);
  EXPECT_EQ(call.Trailing("grpc-retry-pushback-ms"), "");
  EXPECT_EQ(Calls("INVALID_ARGUMENT"), 1);
  EXPECT_EQ(Rejected("invalid"), 1);
  EXPECT_EQ(server_->Metric("aft_rejected_total"), 1);
  EXPECT_EQ(LineOf(call)["level"], "info");
}

TEST_P(RefusalContractTest, AModelForOtherMethodsSaysWhichItServes) {
  if (GetParam().encoder() && !GetParam().infer()) return;  // every model with a tokenizer does
  Start();
  const std::string other = GetParam().encoder() ? "fake" : "encoder";
  ContractCall call = Open(Ask::kShort, {}, other);
  if (GetParam().infer()) {
    const char* const why = GetParam().encoder() ? "text_input: must " : "is no input of model";
    ExpectRefused(call, absl::StatusCode::kInvalidArgument, HasSubstr(why));
  } else {
    ExpectRefused(
        call, absl::StatusCode::kFailedPrecondition,
        absl::StrCat("model \"encoder\" is an encoder: it serves Encode, not ", GetParam().method));
  }
  EXPECT_EQ(
      server_->Metric(absl::StrCat("aft_rejected_total{model=\"", other, "\",reason=\"invalid\"}")),
      1);
}

// Neither a place nor a word about the model's state: the queue is full, of team-b. Nor is the
// message parsed.
TEST_P(RefusalContractTest, AModelThatItsClientMayNotUseIsRefusedBeforeAPlaceIsTaken) {
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
  // Whether it is served or not.
  ContractCall unknown = Open(Ask::kShort, AsTeamA(), "nobody");
  ExpectRefused(unknown, absl::StatusCode::kPermissionDenied,
                "client \"team-a\" may not use model \"nobody\"");
}

TEST_P(AnyRefusalContractTest, AnUnknownClientIsUnauthenticated) {
  KnowTeamA("token a", "");
  Start();
  ContractCall call = Open();
  if (GetParam().infer_stream()) without_line_[call.id()] = "UNAUTHENTICATED";
  IsRefused(call);
  ExpectEnd(call, absl::StatusCode::kUnauthenticated, StartsWith("authorization: "));
  EXPECT_EQ(call.Trailing("x-request-id"), call.id());
  EXPECT_EQ(call.Initial("x-request-id"), "");
  EXPECT_EQ(server_->Metric(RequestsTotal("UNAUTHENTICATED", GetParam().method, "")), 1);
}

// All threads of the decode pool are busy, with calls of team-b.
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

TEST_P(UndecodedContractTest, ACallWhoseClientIsRemovedBeforeItIsParsedIsRefused) {
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

// When the server hears of it is not known: the engine may have it first.
TEST_P(LongUndecodedContractTest, ACallThatIsCancelledBeforeItIsParsedEnds) {
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
