#include "tests/integration/methods/call_contract_fixture.h"

#include <chrono>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/known_clients.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::ElementsAreArray;

// The fields of request.done after those that every log line has.
constexpr const char* kFields[] = {
    "id",        "peer",     "client",        "method",           "model",          "code",
    "reason",    "n",        "prompt_tokens", "generated_tokens", "resumed_tokens", "queue_ms",
    "ttft_ms",   "total_ms", "cached_tokens", "cache_miss",       "diverged_at",    "prefill_ms",
    "decode_ms", "write_ms", "trace_id",      "span_id",          "parent_id"};

}  // namespace

void ContractTest::Start() {
  if (GetParam().method == absl::string_view("Classify")) {
    encoder_options_.labels.resize(static_cast<size_t>(encoder_options_.width));
  }
  server_ = std::make_unique<TestServer>(
      config_, FakeModels{.encoder_options = encoder_options_,
                          .before_encoding = [gate = tokenizing_](absl::string_view text) {
                            if (text != "held") return;
                            ++gate->entered;
                            gate->Enter();
                          }});
}

ContractTest::ContractTest() : config_(TestConfigWithEncoder()) {
  const int sequences = GetParam().sequences;
  config_.models[0].slots = sequences;
  config_.models[1].max_batch_rows = sequences;
  config_.limits.max_queued_requests = sequences;
  config_.limits.max_texts = kFillerTexts;
  config_.scheduling.max_client_queued_requests = sequences;
  config_.scheduling.max_client_slots = sequences;
  config_.drain.grace = std::chrono::hours(1);
  if (GetParam().http()) config_.http_address = "127.0.0.1:0";
}

ContractCall ContractTest::OpenAs(const Case& one, Ask ask, const CallTerms& terms,
                                  const std::string& model, bool unread) {
  const std::string id = absl::StrCat("call-", ids_.size() + 1);
  ids_.insert(id);
  return Send(id, one, ask, terms, model, unread);
}

ContractCall ContractTest::Send(const std::string& id, const Case& one, Ask ask, CallTerms terms,
                                const std::string& model, bool unread) {
  if (!id.empty()) terms.headers.emplace_back("x-request-id", id);
  const Server& server = server_->server();
  return {id, SendCall(one.http() ? server.http_address() : server.address(), one,
                       one.message(model, ask, id), terms, unread)};
}

ContractCall ContractTest::Open(Ask ask, const CallTerms& terms, const std::string& model) {
  return OpenAs(GetParam(), ask, terms, model);
}

ContractCall ContractTest::OpenUnread(Ask ask) {
  return OpenAs(GetParam(), ask, {}, GetParam().model, /*unread=*/true);
}

ContractCall ContractTest::OpenHeld(Ask ask) {
  gate().Hold();
  ContractCall call = Open(ask);
  gate().WaitUntilBlocked();
  return call;
}

ContractCall ContractTest::OpenFiller(const CallTerms& terms) {
  const Case filler = FillerOf(GetParam());
  gate().Hold();
  ContractCall call = OpenAs(filler, Ask::kLong, terms, filler.model);
  gate().WaitUntilBlocked();
  return call;
}

std::vector<ContractCall> ContractTest::HoldDecoding() {
  const Case tokenizing = HeldTokenizing();
  std::vector<ContractCall> held;
  tokenizing_->entered = 0;
  tokenizing_->Hold();
  for (int i = 0; i < kDecodeThreads; ++i) {
    held.push_back(OpenAs(tokenizing, Ask::kShort, AsTeamB(), tokenizing.model));
  }
  WaitUntil([this] { return tokenizing_->entered == kDecodeThreads; });
  return held;
}

void ContractTest::ResumeDecoding(std::vector<ContractCall>& held) {
  tokenizing_->Resume();
  for (ContractCall& call : held) EXPECT_TRUE(call.Finish().status.ok());
}

void ContractTest::WaitUntilDecoded() {
  std::vector<ContractCall> held = HoldDecoding();
  ResumeDecoding(held);
}

ContractCall ContractTest::OpenNamed(const std::string& id, Ask ask, const CallTerms& terms) {
  if (!id.empty()) ids_.insert(id);
  return Send(id, GetParam(), ask, terms, GetParam().model, /*unread=*/false);
}

void ContractTest::ExpectNeighbourIsServed() {
  const Case neighbour = AllCases().front();
  ContractCall call = OpenAs(neighbour, Ask::kShort, {}, neighbour.model);
  EXPECT_THAT(call.Finish().status, StatusIs(absl::StatusCode::kOk, ""));
}

ContractCall::End ContractTest::ExpectEnd(ContractCall& call, absl::StatusCode code,
                                          const testing::Matcher<std::string>& message) {
  const ContractCall::End end = call.Finish();
  std::string told = end.status.error_message();
  // A client that may not call at all loses the whole stream of requests.
  if (GetParam().infer_stream() && code != absl::StatusCode::kUnauthenticated) {
    EXPECT_THAT(end.status, StatusIs(absl::StatusCode::kOk, ""));
    EXPECT_EQ(end.error_id, call.id());
    told = end.error;
  } else {
    EXPECT_THAT(end.status, StatusIs(code, testing::_));
  }
  EXPECT_THAT(told, message);
  const LogLine line = LineOf(call);
  EXPECT_EQ(line["code"], absl::StatusCodeToString(code));
  // The reason of an internal error is for operators, so it differs from the message.
  if (code != absl::StatusCode::kInternal) {
    EXPECT_EQ(line["reason"], told);
  }
  return end;
}

void ContractTest::ExpectRefused(ContractCall& call, absl::StatusCode code,
                                 const testing::Matcher<std::string>& message) {
  IsRefused(call);
  EXPECT_EQ(ExpectEnd(call, code, message).responses, 0);
  if (GetParam().infer_stream()) return;
  EXPECT_EQ(call.Trailing("x-request-id"), call.id());
  EXPECT_EQ(call.Initial("x-request-id"), "") << "gRPC would not try it again";
  EXPECT_EQ(call.Trailing("aft-usage-bin"), "");
  EXPECT_EQ(call.Trailing("aft-timings-bin"), "");
}

void ContractTest::ExpectAnswered(ContractCall& call) {
  const ContractCall::End end = call.Finish();
  EXPECT_THAT(end.status, StatusIs(absl::StatusCode::kOk, ""));
  EXPECT_EQ(end.error, "");
  EXPECT_GT(end.responses, 0);
  EXPECT_EQ(LineOf(call)["code"], "OK");
}

StepGate& ContractTest::gate() {
  if (GetParam().encoder()) return server_->encoder_control();
  return server_->control();
}

void ContractTest::FailNextStep(const absl::Status& status) {
  if (GetParam().encoder()) {
    server_->encoder_control().FailNext(status);
  } else {
    server_->control().FailNext(FakeCall::kCollect, status);
  }
}

std::string ContractTest::OfModel(const std::string& name, const std::string& more) const {
  return absl::StrCat(name, "{model=\"", GetParam().model, "\"", more, "}");
}

double ContractTest::Calls(const std::string& code) {
  return server_->Metric(RequestsTotal(code, GetParam().method, GetParam().model));
}

void ContractTest::WaitUntilWaiting(double sequences) {
  server_->WaitForMetric(OfModel("aft_requests_waiting"), sequences);
}

std::optional<LogLine> ContractTest::FindLine(const std::string& id) const {
  for (LogLine& line : log_.Lines("request.done")) {
    if (line["id"] == id) return std::move(line);
  }
  return std::nullopt;
}

void ContractTest::WaitUntil(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), limit) << "it never came";
    std::this_thread::yield();
  }
}

LogLine ContractTest::LineOf(const ContractCall& call) {
  std::optional<LogLine> line;
  WaitUntil([&] { return (line = FindLine(call.id())).has_value(); });
  EXPECT_TRUE(line.has_value()) << "no line of " << call.id() << ": " << log_.Text();
  return line.value_or(LogLine());
}

LogLine ContractTest::StepUntilLineOf(const ContractCall& call) {
  // The pauses become longer, so that a cancellation that the server learns of late does not find
  // all texts of an encoder's filler read, and the call begun.
  WaitUntil([&, pause = std::chrono::milliseconds(0)]() mutable {
    std::this_thread::sleep_for(pause++);
    gate().AllowSteps(1);
    return FindLine(call.id()).has_value();
  });
  return LineOf(call);
}

void ContractTest::KnowTeamA(const std::string& token, const std::string& fields) {
  config_.security.clients_file = folder_.File("clients.textproto");
  Replace(config_.security.clients_file,
          ClientEntry("team-a", token, fields) + ClientEntry("team-b", "token b"));
  ASSERT_TRUE(server_ == nullptr || server_->server().Reload(config_).ok());
}

CallTerms ContractTest::AsTeamA() { return {.headers = {{"authorization", "Bearer token a"}}}; }
CallTerms ContractTest::AsTeamB() { return {.headers = {{"authorization", "Bearer token b"}}}; }

ContractCall ContractTest::OpenAndChangeTeamA(Ask ask, const std::string& fields) {
  KnowTeamA("token a", "");
  Start();
  gate().Hold();
  ContractCall call = Open(ask, AsTeamA());
  gate().WaitUntilBlocked();
  WaitUntilDecoded();
  KnowTeamA("token a", fields);
  gate().Resume();
  return call;
}

void ContractTest::ExpectNothingIsHeld() {
  server_->WaitForMetric(kMemoryUsed, 0);
  for (const char* gauge : {"aft_slots_used", "aft_requests_waiting", "aft_requests_running"}) {
    server_->WaitForMetric(OfModel(gauge), 0);
  }
  server_->WaitForMetric("aft_undelivered_bytes", 0);
  EXPECT_EQ(server_->Metric("aft_states"), 0);  // no request stores a state
}

void ContractTest::ExpectCounts(const std::vector<LogLine>& lines) {
  std::map<std::pair<std::string, std::string>, double> ended;  // method and code
  std::map<std::string, double> timed;
  std::map<std::string, double> clients;  // by result
  for (const LogLine& line : lines) {
    if (line["client"] != "") clients[line["code"] == "OK" ? "ok" : "failed"] += 1;
    ended[{line["method"], line["code"]}] += 1;
    timed[line["method"]] += refused_.count(line["id"]) > 0 ? 0 : 1;
  }
  double all = 0;
  for (const auto& [which, count] : ended) {
    const auto& [method, code] = which;
    EXPECT_EQ(server_->Metric(
                  absl::StrCat("aft_requests_total{code=\"", code, "\",method=\"", method, "\"}")),
              count)
        << method << " " << code;
    all += count;
  }
  EXPECT_EQ(server_->Metric("aft_requests_total"), all);
  for (const auto& [result, count] : clients) {
    EXPECT_EQ(server_->Metric(absl::StrCat("aft_client_requests_total{result=\"", result, "\"}")),
              count);
  }
  for (const auto& [method, count] : timed) {
    if (times_unsure_) continue;
    EXPECT_EQ(server_->Metric(absl::StrCat("aft_e2e_seconds_count{method=\"", method, "\"}")),
              count)
        << method;
  }
}

void ContractTest::TearDown() {
  if (server_ == nullptr) return;
  tokenizing_->Resume();  // after a failure, no call may wait for the test
  server_->control().Resume();
  server_->encoder_control().Resume();
  if (!drained_) {
    ExpectNothingIsHeld();
    const bool known = !config_.security.clients_file.empty();
    if (known) KnowTeamA("token a", "");
    if (!refuses_all_) {
      ContractCall last = Open(Ask::kShort, known ? AsTeamA() : CallTerms());
      ExpectAnswered(last);
      server_->WaitForMetric(kMemoryUsed, 0);
    }
    ExpectCounts(log_.Lines("request.done"));
  }
  server_.reset();
  std::map<std::string, int> lines;
  std::vector<std::string> names;
  for (const LogLine& line : log_.Lines("request.done")) {
    ++lines[line["id"]];
    EXPECT_EQ(ids_.count(line["id"]), 1U) << "a line of no call: " << line["id"];
    names.clear();
    for (const auto& [name, value] : line.fields) names.push_back(name);
    std::vector<std::string> all = {"time", "level", "event"};
    all.insert(all.end(), std::begin(kFields), std::end(kFields));
    if (absl::StrContains(line["method"], "Infer") == GetParam().infer()) {
      EXPECT_THAT(names, ElementsAreArray(all));
    }
  }
  for (const std::string& id : ids_) {
    if (unsure_.count(id) == 0) {
      EXPECT_EQ(lines[id], 1) << id;
    } else {
      EXPECT_LE(lines[id], 1) << id;
    }
  }
}

}  // namespace aft::server
