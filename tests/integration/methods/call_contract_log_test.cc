// What every call leaves in the log, in metrics and in metadata, for each method and carrier, over
// real gRPC and HTTP with fake models.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/methods/call_contract_fixture.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::MatchesRegex;
using ::testing::StartsWith;

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParent[] = "00f067aa0ba902b7";

CallTerms WithTrace(int times = 1) {
  CallTerms terms;
  for (int i = 0; i < times; ++i) {
    terms.headers.emplace_back("traceparent", absl::StrCat("00-", kTrace, "-", kParent, "-01"));
  }
  return terms;
}

INSTANTIATE_TEST_SUITE_P(All, AnyContractTest, testing::ValuesIn(AllCases()), CaseName);

TEST_P(AnyContractTest, EchoesTheRequestIdOrMakesOne) {
  Start();
  for (const std::string& id : {std::string("my request 1"), std::string(128, '~')}) {
    ContractCall own = OpenNamed(id);
    ExpectAnswered(own);
    EXPECT_EQ(own.Initial("x-request-id"), id);
  }
  ContractCall made = OpenNamed("");
  EXPECT_TRUE(made.Finish().status.ok());
  EXPECT_THAT(made.Initial("x-request-id"), MatchesRegex("[0-9a-f]{32}"));
  Knows(made.Initial("x-request-id"));
}

TEST_P(AnyContractTest, AnInvalidIdIsRefusedUnderANewOne) {
  Start();
  for (const std::string& given : {std::string(), std::string(129, '~')}) {
    ContractCall call = OpenNamed("", Ask::kShort, {.headers = {{"x-request-id", given}}});
    EXPECT_THAT(call.Finish().status,
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("x-request-id: ")));
    const std::string id = call.Trailing("x-request-id");
    EXPECT_THAT(id, MatchesRegex("[0-9a-f]{32}"));
    Knows(id);
    IsRefusedAs(id);
  }
  EXPECT_EQ(server_->Metric(RequestsTotal("INVALID_ARGUMENT", GetParam().method, "")), 2);
}

TEST_P(AnyContractTest, TheCallIsASpanOfItsClientsTrace) {
  Start();
  ContractCall call = Open(Ask::kShort, WithTrace());
  ExpectAnswered(call);
  const LogLine line = LineOf(call);
  EXPECT_EQ(line["trace_id"], kTrace);
  EXPECT_EQ(line["parent_id"], kParent);
  EXPECT_THAT(line["span_id"], MatchesRegex("[0-9a-f]{16}"));
  EXPECT_NE(line["span_id"], kParent);
  EXPECT_EQ(call.Initial("traceparent"), absl::StrCat("00-", kTrace, "-", line["span_id"], "-01"));
}

TEST_P(AnyContractTest, ARefusalIsASpanToo) {
  Start();
  ContractCall call = Open(Ask::kShort, WithTrace(), "unknown");
  ExpectRefused(call, absl::StatusCode::kNotFound, testing::_);
  const LogLine line = LineOf(call);
  EXPECT_EQ(line["trace_id"], kTrace);
  EXPECT_EQ(line["parent_id"], kParent);
  const std::string own = absl::StrCat("00-", kTrace, "-", line["span_id"], "-01");
  // Only the request is refused, not its stream, so the stream sends initial metadata.
  EXPECT_EQ(call.Trailing("traceparent"), GetParam().infer_stream() ? "" : own);
  EXPECT_EQ(call.Initial("traceparent"), GetParam().infer_stream() ? own : "");
}

TEST_P(AnyContractTest, WithoutAValidTraceOneBegins) {
  Start();
  const std::string zeros = absl::StrCat("00-", std::string(32, '0'), "-", kParent, "-01");
  std::string last;
  for (const std::string& given : {std::string(), zeros, std::string("nonsense")}) {
    CallTerms terms;
    if (!given.empty()) terms.headers.emplace_back("traceparent", given);
    ContractCall call = Open(Ask::kShort, terms);
    ExpectAnswered(call);
    const LogLine line = LineOf(call);
    EXPECT_THAT(line["trace_id"], MatchesRegex("[0-9a-f]{32}"));
    EXPECT_NE(line["trace_id"], last);
    last = line["trace_id"];
    EXPECT_EQ(line["parent_id"], "");
    EXPECT_EQ(call.Initial("traceparent"), absl::StrCat("00-", last, "-", line["span_id"], "-00"));
  }
  ContractCall twice = Open(Ask::kShort, WithTrace(/*times=*/2));
  ExpectAnswered(twice);
  EXPECT_NE(LineOf(twice)["trace_id"], kTrace);
}

TEST_P(AnyContractTest, TheLineOfASuccessDescribesTheCall) {
  Start();
  ContractCall call = Open();
  ExpectAnswered(call);
  const LogLine line = LineOf(call);
  EXPECT_EQ(line["level"], "info");
  EXPECT_EQ(line["id"], call.id());
  EXPECT_THAT(line["peer"], StartsWith("ipv4:127.0.0.1:"));
  EXPECT_EQ(line["client"], "127.0.0.1");
  EXPECT_EQ(line["method"], GetParam().method);
  EXPECT_EQ(line["model"], GetParam().model);
  EXPECT_EQ(line["reason"], GetParam().reason);
  EXPECT_EQ(line["n"], absl::StrCat(GetParam().sequences));
  EXPECT_EQ(line["prompt_tokens"], absl::StrCat(GetParam().prompt_tokens));
  EXPECT_EQ(line["generated_tokens"], absl::StrCat(GetParam().generated_tokens));
  EXPECT_EQ(line["resumed_tokens"], "0");
  EXPECT_EQ(line["cached_tokens"], "0");
  EXPECT_EQ(line["cache_miss"], GetParam().generates() ? "too_short" : "");
  EXPECT_EQ(line["diverged_at"], "0");
  EXPECT_EQ(Calls("OK"), 1);
  EXPECT_EQ(server_->Metric(absl::StrCat("aft_e2e_seconds_count{method=\"", GetParam().method,
                                         "\",model=\"", GetParam().model, "\"}")),
            1);
  EXPECT_EQ(server_->Metric("aft_requests_total"), 1);
  EXPECT_EQ(server_->Metric("aft_rejected_total"), 0);
  double computed = 0;
  for (const char* tokens : {"prompt", "generated", "encoded"}) {
    computed += server_->Metric(absl::StrCat("aft_", tokens, "_tokens_total"));
  }
  EXPECT_EQ(server_->Metric("aft_client_tokens_total"), computed);
  EXPECT_GE(computed, GetParam().prompt_tokens + GetParam().generated_tokens);
}

// The log rounds times to six digits.
TEST_P(AnyContractTest, ThePhasesFitIntoTheCall) {
  Start();
  ContractCall call = Open();
  ExpectAnswered(call);
  const LogLine line = LineOf(call);
  const double total = line.Number("total_ms");
  const auto rounding = [](double ms) { return 1e-3 + 1e-5 * ms; };
  EXPECT_GT(total, 0);
  const double queue = line.Number("queue_ms");
  const double first = line.Number("ttft_ms");
  const double prefill = line.Number("prefill_ms");
  const double decode = line.Number("decode_ms");
  EXPECT_EQ(queue > 0, GetParam().engine);
  EXPECT_EQ(first > 0, GetParam().engine);
  EXPECT_EQ(prefill > 0, first > 0);
  EXPECT_EQ(decode > 0, GetParam().generates());
  if (first > 0) {
    EXPECT_NEAR(queue + prefill, first, rounding(first));
  }
  EXPECT_LE(queue, total + rounding(total));
  EXPECT_LE(first + decode, total + rounding(total));
  EXPECT_GE(line.Number("write_ms"), 0);
  EXPECT_LE(line.Number("write_ms"), total + rounding(total));
}

TEST_P(AnyContractTest, ABadFieldIsNamedAndCountedAndTheLineHasNoTimes) {
  config_.limits.max_message_bytes = 8 << 20;
  Start();
  ContractCall call = Open(Ask::kBad);
  ExpectRefused(call, absl::StatusCode::kInvalidArgument, GetParam().bad_field);
  EXPECT_EQ(call.Trailing("grpc-retry-pushback-ms"), "");
  EXPECT_EQ(Calls("INVALID_ARGUMENT"), 1);
  EXPECT_EQ(server_->Metric(OfModel("aft_rejected_total", ",reason=\"invalid\"")), 1);
  EXPECT_EQ(server_->Metric("aft_rejected_total"), 1);
  const LogLine line = LineOf(call);
  EXPECT_EQ(line["level"], "info");
  EXPECT_THAT(line["peer"], StartsWith("ipv4:127.0.0.1:"));
  EXPECT_EQ(line["client"], "127.0.0.1");
  EXPECT_EQ(line["method"], GetParam().method);
  EXPECT_EQ(line["model"], GetParam().model);
  EXPECT_EQ(line["reason"], GetParam().bad_field);
  EXPECT_EQ(line["cache_miss"], "");
  EXPECT_GT(line.Number("total_ms"), 0);
  for (const char* field : {"prompt_tokens", "generated_tokens", "resumed_tokens", "queue_ms",
                            "ttft_ms", "cached_tokens", "diverged_at", "prefill_ms", "decode_ms"}) {
    EXPECT_EQ(line[field], "0") << field;
  }
}

}  // namespace
}  // namespace aft::server
