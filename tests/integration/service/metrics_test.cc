// The metrics page after real traffic, with fake models: what each metric counts, that labels are
// bounded, and that the page agrees with its documentation and Prometheus' conventions.
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "re2/re2.h"
#include "server/observability/methods.h"
#include "tests/integration/methods/call_contract_cases.h"
#include "tests/integration/oip/fixture.h"
#include "tests/integration/raw_call.h"
#include "tests/unit/client/process.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSubsetOf;

ServerConfig Config() {
  ServerConfig config = TestConfigWithEncoder();
  config.limits.max_max_tokens = kEndless;
  config.limits.max_stream_buffer_bytes = 1 << 30;
  return config;
}

std::string Labels(const std::string& method, const std::string& model = "fake") {
  return absl::StrCat("{method=\"", method, "\",model=\"", model, "\"}");
}

class MetricsTest : public testing::Test {
 protected:
  using Oip = inference::GRPCInferenceService::Stub;

  void Start(const ServerConfig& config = Config()) {
    server_ = std::make_unique<OipServer>(config);
  }

  double Metric(const std::string& name) { return server_->Metric(name); }
  double Of(const std::string& name, const std::string& method, const std::string& model = "fake") {
    return Metric(name + Labels(method, model));
  }

  grpc::Status Generate(uint32_t tokens) {
    return GenerateStream(server_->inference(), Request("abc", tokens)).Finish();
  }
  grpc::Status Infer(InferBuilder builder) { return server_->Infer(builder.request()).status; }

  // Calls a method that does not belong to a model, and expects this code each time.
  template <typename Stub, typename Request, typename Response>
  void Call(Stub& stub,
            grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
            grpc::StatusCode code, int times, const Request& request = {}) {
    for (int i = 0; i < times; ++i) {
      grpc::ClientContext context;
      Response response;
      EXPECT_EQ((stub.*method)(&context, request, &response).error_code(), code);
    }
  }
  // Calls one that belongs to a model which does not exist.
  template <typename Request, typename Response>
  void CallUnknown(grpc::Status (Oip::*method)(grpc::ClientContext*, const Request&, Response*),
                   grpc::StatusCode code, int times) {
    Request request;
    request.set_name("unknown_model");
    Call(server_->oip(), method, code, times, request);
  }

  // Calls every method, so that every metric has a sample.
  void CallEveryMethod() {
    const auto channel = TestServer::Connect(server_->server().address());
    for (const Case& one : OverGrpc(AllCases())) {
      RawCall call(*channel, one.path, one.message(one.model, Ask::kShort, "id"));
      ASSERT_TRUE(call.Finish().ok()) << one.name;
    }
    v1::GetRequest unknown_model;
    unknown_model.set_name("unknown_model");
    // A method that is counted under another's name has another count.
    Call(server_->models(), &v1::ModelService::Stub::List, grpc::OK, 1);
    Call(server_->models(), &v1::ModelService::Stub::Get, grpc::NOT_FOUND, 2, unknown_model);
    Call(server_->oip(), &Oip::ServerLive, grpc::OK, 3);
    Call(server_->oip(), &Oip::ServerReady, grpc::OK, 4);
    CallUnknown(&Oip::ModelReady, grpc::OK, 5);
    Call(server_->oip(), &Oip::ServerMetadata, grpc::OK, 6);
    CallUnknown(&Oip::ModelMetadata, grpc::NOT_FOUND, 7);
    CallUnknown(&Oip::ModelConfig, grpc::NOT_FOUND, 8);
    CallUnknown(&Oip::ModelStatistics, grpc::NOT_FOUND, 9);
    Call(server_->oip(), &Oip::RepositoryIndex, grpc::OK, 10);
    Call(server_->oip(), &Oip::RepositoryModelLoad, grpc::PERMISSION_DENIED, 11);
    Call(server_->oip(), &Oip::RepositoryModelUnload, grpc::PERMISSION_DENIED, 12);
    // The server has no file of clients.
    Call(server_->states(), &v1::StateService::Stub::List, grpc::FAILED_PRECONDITION, 13);
  }

  std::unique_ptr<OipServer> server_;
};

TEST_F(MetricsTest, CallsAndTokensOfEveryMethodAreCountedExactly) {
  Start();
  CallEveryMethod();
  struct Expected {
    const char* method;
    const char* model;
    double calls;
    double requests;
    double prompt;
    double generated;  // a request has one gap less than tokens
    double scored;
    double encoded;
    double first_tokens;  // the number of requests that generate
  };
  const Expected methods[] = {
      // The first sequence of a group reads the whole prompt. Every other one reads only its last
      // token.
      {"Generate", "fake", 2, 3, 5 + 5 + 1, 3 + 2 * 3, 0, 0, 3},
      {"Complete", "fake", 2, 3, 5 + 5 + 1, 3 + 2 * 3, 0, 0, 3},
      {"Score", "fake", 2, 3, 5 + 5 + 2, 0, 4 + 4 + 1, 0, 0},
      {"ModelInfer", "fake", 2, 2, 5 + 5, 3, 4, 0, 1},
      {"ModelInfer", "encoder", 1, 2, 0, 0, 0, 5 + 2, 0},
      {"ModelStreamInfer", "fake", 2, 2, 5 + 5, 3 + 3, 0, 0, 2},
      {"ModelStreamInfer", "encoder", 1, 2, 0, 0, 0, 5 + 2, 0},
      {"Encode", "encoder", 2, 3, 0, 0, 0, 5 + 5 + 2, 0},
  };
  for (const Expected& expected : methods) {
    SCOPED_TRACE(absl::StrCat(expected.method, " of ", expected.model));
    const auto of = [&](const char* name) { return Of(name, expected.method, expected.model); };
    EXPECT_EQ(Metric(RequestsTotal("OK", expected.method, expected.model)), expected.calls);
    EXPECT_EQ(of("aft_requests_total"), expected.calls);
    EXPECT_EQ(of("aft_e2e_seconds_count"), expected.calls);
    EXPECT_EQ(of("aft_queue_seconds_count"), expected.requests);
    EXPECT_EQ(of("aft_prompt_tokens_total"), expected.prompt);
    EXPECT_EQ(of("aft_generated_tokens_total"), expected.generated);
    EXPECT_EQ(of("aft_scored_tokens_total"), expected.scored);
    EXPECT_EQ(of("aft_encoded_tokens_total"), expected.encoded);
    EXPECT_EQ(of("aft_ttft_seconds_count"), expected.first_tokens);
    EXPECT_EQ(of("aft_inter_token_seconds_count"), expected.generated - expected.first_tokens);
    EXPECT_EQ(of("aft_time_per_output_token_seconds_count"), expected.first_tokens);
  }
  for (size_t i = kEngineMethods; i < kModelMethods; ++i) {
    const char* const method = kMethodNames[i];
    EXPECT_EQ(Of("aft_requests_total", method), 1);
    EXPECT_EQ(Of("aft_e2e_seconds_count", method), 1);
  }
  // The metrics count nothing in addition to these calls.
  EXPECT_EQ(Metric(R"(aft_request_finished_total{model="fake"})"), 3 + 3 + 3 + 2 + 2);
  EXPECT_EQ(Metric(R"(aft_request_finished_total{model="fake",reason="done"})"), 3 + 1);
  EXPECT_EQ(Metric(R"(aft_request_finished_total{model="fake",reason="length"})"), 9);
  EXPECT_EQ(Metric(R"(aft_request_finished_total{model="encoder",reason="done"})"), 2 + 2 + 3);
  EXPECT_EQ(Metric(R"(aft_requests_total{model="fake"})"), 2 + 2 + 2 + 2 + 2 + 2);
  EXPECT_EQ(Metric("aft_step_tokens_sum{model=\"encoder\"}"), 7 + 7 + 12);
  EXPECT_EQ(Metric("aft_rejected_total"), 0);
  EXPECT_EQ(Metric("aft_engine_failures_total"), 0);

  int times = 0;
  for (const auto& [method, code] : {std::pair("ListModels", "OK"),
                                     {"GetModel", "NOT_FOUND"},
                                     {"ServerLive", "OK"},
                                     {"ServerReady", "OK"},
                                     {"ModelReady", "OK"},
                                     {"ServerMetadata", "OK"},
                                     {"ModelMetadata", "NOT_FOUND"},
                                     {"ModelConfig", "NOT_FOUND"},
                                     {"ModelStatistics", "NOT_FOUND"},
                                     {"RepositoryIndex", "OK"},
                                     {"RepositoryModelLoad", "PERMISSION_DENIED"},
                                     {"RepositoryModelUnload", "PERMISSION_DENIED"},
                                     {"ListStates", "FAILED_PRECONDITION"}}) {
    EXPECT_EQ(Metric(RequestsTotal(code, method, "")), ++times) << method;
    EXPECT_EQ(Of("aft_e2e_seconds_count", method, ""), times) << method;
  }
  EXPECT_EQ(Metric(R"(aft_requests_total{model=""})"), times * (times + 1) / 2);
}

TEST_F(MetricsTest, ACallThatNeverFitsIntoTheMemoryIsCountedWithItsModel) {
  ServerConfig config = Config();
  config.limits.max_memory_bytes = config.limits.max_client_memory_bytes = 1000;
  Start(config);
  EXPECT_EQ(Generate(2).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Metric(RequestsTotal("INVALID_ARGUMENT", "Generate", "fake")), 1);
}

TEST_F(MetricsTest, RunningAndWaitingRequestsAreCountedByPriority) {
  ServerConfig config = Config();
  config.models[0].slots = 2;
  config.scheduling.max_client_slots = 2;
  Start(config);
  const auto gauge = [&](const std::string& name, const std::string& priority) {
    return Metric(absl::StrCat(name, "{model=\"fake\",priority=\"", priority, "\"}"));
  };
  const auto open = [&](const std::string& text, v1::Priority priority) {
    v1::GenerateRequest request = Request(text, 3);
    request.set_priority(priority);
    return GenerateStream(server_->inference(), request);
  };
  server_->control().Hold();
  std::vector<GenerateStream> streams;
  streams.push_back(open("1", v1::PRIORITY_INTERACTIVE));
  server_->control().WaitUntilBlocked();
  // The request counts as running during its first step, even if that step never ends.
  EXPECT_EQ(gauge("aft_requests_running_by_priority", "interactive"), 1);
  EXPECT_EQ(Metric(R"(aft_requests_running{model="fake"})"), 1);
  streams.push_back(open("22", v1::PRIORITY_BATCH));
  streams.push_back(open("333", v1::PRIORITY_BATCH));
  streams.push_back(open("4444", v1::PRIORITY_UNSPECIFIED));
  server_->WaitForMetric(R"(aft_requests_waiting{model="fake"})", 3);
  EXPECT_EQ(gauge("aft_requests_waiting_by_priority", "interactive"), 0);
  EXPECT_EQ(gauge("aft_requests_waiting_by_priority", "normal"), 1);
  EXPECT_EQ(gauge("aft_requests_waiting_by_priority", "batch"), 2);
  EXPECT_EQ(Metric(R"(aft_waiting_tokens{model="fake"})"), 2 + 3 + 4);

  server_->control().RunSteps(1);  // the normal request starts before the batch ones
  EXPECT_EQ(gauge("aft_requests_running_by_priority", "normal"), 1);
  EXPECT_EQ(gauge("aft_requests_running_by_priority", "batch"), 0);
  EXPECT_EQ(Metric(R"(aft_waiting_tokens{model="fake"})"), 2 + 3);
  server_->control().Resume();
  for (GenerateStream& stream : streams) EXPECT_TRUE(stream.Finish().ok());
  for (const char* priority : {"interactive", "normal", "batch"}) {
    EXPECT_EQ(gauge("aft_requests_running_by_priority", priority), 0);
    EXPECT_EQ(gauge("aft_requests_waiting_by_priority", priority), 0);
  }
  EXPECT_EQ(Metric(R"(aft_waiting_tokens{model="fake"})"), 0);
  const auto queued = [&](const std::string& priority) {
    return gauge("aft_queue_seconds_count", priority);
  };
  EXPECT_EQ(queued("interactive"), 1);
  EXPECT_EQ(queued("normal"), 1);
  EXPECT_EQ(queued("batch"), 2);
}

TEST_F(MetricsTest, AgesGrowWhileAStepDoesNotEnd) {
  ServerConfig config = Config();
  config.models[0].slots = 1;
  Start(config);
  const std::string waiting = R"(aft_oldest_waiting_seconds{model="fake"})";
  const std::string step = R"(aft_last_step_age_seconds{model="fake"})";
  const auto wait_until_beyond = [&](const std::string& name, double value) {
    while (Metric(name) <= value) continue;
  };
  EXPECT_EQ(Metric(waiting), 0);
  wait_until_beyond(step, 0);  // the age counts from the end of loading
  server_->control().Hold();
  GenerateStream running(server_->inference(), Request("abc", 2));
  server_->control().WaitUntilBlocked();
  EXPECT_EQ(Metric(waiting), 0);
  GenerateStream second(server_->inference(), Request("abc", 2));
  server_->WaitForMetric(R"(aft_requests_waiting{model="fake"})", 1);
  for (int i = 0; i < 3; ++i) {
    wait_until_beyond(waiting, Metric(waiting));
    wait_until_beyond(step, Metric(step));
  }
  server_->control().RunSteps(1);
  const double in_queue = Metric(waiting);  // the engine has it now
  EXPECT_GT(in_queue, 0);
  wait_until_beyond(waiting, in_queue);
  server_->control().Resume();
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
  server_->WaitForMetric(waiting, 0);
}

TEST_F(MetricsTest, UnreadBytesCountAsUndelivered) {
  Start();
  EXPECT_EQ(Metric("aft_undelivered_bytes"), 0);
  const auto stub = server_->StubWithASmallWindow();
  auto unread = std::make_unique<GenerateStream>(*stub, Request("abc", kEndless));
  while (Metric("aft_undelivered_bytes") < 100'000) continue;
  unread->context().TryCancel();
  EXPECT_EQ(unread->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_->WaitForMetric("aft_undelivered_bytes", 0);
}

TEST_F(MetricsTest, FailuresOfTheEngineAreCounted) {
  Start();
  server_->control().FailNext(FakeCall::kCollect, absl::InternalError("no luck"));
  EXPECT_EQ(Generate(2).error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(Metric(R"(aft_engine_failures_total{model="fake",reason="step"})"), 1);
  EXPECT_EQ(Of("aft_e2e_seconds_count", "Generate"), 1);
  server_->control().FailNext(FakeCall::kCollect, absl::UnavailableError("it is gone"));
  EXPECT_EQ(Generate(2).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Metric(R"(aft_engine_failures_total{model="fake",reason="step"})"), 2);
  EXPECT_EQ(Metric(R"(aft_engine_failures_total{model="fake",reason="model"})"), 1);
  EXPECT_EQ(Metric("aft_engine_failures_total"), 3);
}

// The names of the samples with their labels.
std::set<std::string> Series(const std::string& page) {
  std::set<std::string> series;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (absl::StartsWith(line, "aft_") || absl::StartsWith(line, "process_")) {
      series.insert(std::string(line.substr(0, line.rfind(' '))));
    }
  }
  return series;
}

TEST_F(MetricsTest, NoTextFromClientsBecomesALabel) {
  ServerConfig config = Config();
  config.security.trusted_proxies = {"127.0.0.0/8"};
  Start(config);
  const std::set<std::string> before = Series(server_->Metrics());
  EXPECT_GT(before.size(), 1000U);
  const auto channel = TestServer::Connect(server_->server().address());
  for (int i = 0; i < 1000; ++i) {
    const std::string evil = absl::StrCat("evil-", i, "\"} 1\nforged{a=\"");
    v1::GenerateRequest request = Request("x", 1);
    request.set_model(evil);
    request.set_model_version(evil);
    request.set_cache_salt(evil);
    request.set_priority(static_cast<v1::Priority>(i));
    const std::string address = absl::StrCat("10.0.", i / 250, ".", i % 250);
    GenerateStream stream(server_->inference(), request, From(address));
    EXPECT_FALSE(stream.Finish().ok());
    EXPECT_FALSE(Infer(InferBuilder(evil).Id(evil).Text("text_input", "x")).ok());
    request.set_model("fake");
    request.set_model_version("");
    GenerateStream(server_->inference(), request).Finish();  // any priority or none
    RawCall unknown(*channel, absl::StrCat("/aft.v1.InferenceService/Evil", i).c_str(), "");
    EXPECT_EQ(unknown.Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_EQ(Series(server_->Metrics()), before);
  EXPECT_THAT(server_->Metrics(), testing::Not(HasSubstr("evil")));
}

// The names of metrics that a file has between backticks.
std::set<std::string> Documented(const std::string& file) {
  std::ifstream in(file);
  std::set<std::string> names;
  for (std::string line; std::getline(in, line);) {
    if (!absl::StartsWith(line, "| `")) continue;
    re2::StringPiece cell(line.data() + 1, line.find(" | ") - 1);
    std::string name;
    while (RE2::FindAndConsume(&cell, "`((?:aft|process)_[a-z0-9_]+)`", &name)) names.insert(name);
  }
  return names;
}

std::set<std::string> Families(const std::string& page) {
  re2::StringPiece rest(page);
  std::set<std::string> names;
  std::string name;
  while (RE2::FindAndConsume(&rest, "\n# TYPE ([a-z0-9_]+) ", &name)) names.insert(name);
  return names;
}

TEST_F(MetricsTest, ThePageHasExactlyTheDocumentedMetrics) {
  Start();
  const std::set<std::string> documented = Documented("docs/metrics.md");
  EXPECT_GT(documented.size(), 60U);
  EXPECT_EQ(Families(server_->Metrics()), documented);
  // Other pages name only metrics that exist.
  EXPECT_THAT(Documented("README.md"), IsSubsetOf(documented));
  for (const char* other :
       {"SECURITY.md", "docs/routers.md", "server/README.md", "server/engine/README.md",
        "server/observability/README.md", "server/registry/README.md",
        "server/scheduling/README.md", "server/states/README.md"}) {
    std::stringstream text;
    text << std::ifstream(other).rdbuf();
    EXPECT_FALSE(text.str().empty()) << other;
    const std::string all = text.str();
    re2::StringPiece rest(all);
    std::string name;
    while (RE2::FindAndConsume(&rest, "`(aft_[a-z0-9_]+)[`{]", &name)) {
      EXPECT_TRUE(documented.contains(name)) << name << " in " << other;
    }
  }
}

TEST_F(MetricsTest, AModelHasAsManySeriesAsDocumented) {
  Start();
  const std::string page = server_->Metrics();
  int series = 0;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (absl::StrContains(line, "model=\"fake\"")) ++series;
  }
  const int rounded = (series + 25) / 50 * 50;
  std::stringstream text;
  text << std::ifstream("docs/metrics.md").rdbuf();
  EXPECT_THAT(text.str(), HasSubstr(absl::StrFormat("A model has some %d,%03d series",
                                                    rounded / 1000, rounded % 1000)));
}

TEST_F(MetricsTest, ModelInfoNamesVersionAndFingerprint) {
  Start();
  GenerateStream stream(server_->inference(), Request("abc", 2));
  ASSERT_TRUE(stream.Finish().ok());
  const std::string page = server_->Metrics();
  std::string fingerprint;
  ASSERT_TRUE(RE2::PartialMatch(
      page, R"re(\naft_model_info\{model="fake",version="1",fingerprint="([0-9a-f]{16})",)re",
      &fingerprint));
  EXPECT_EQ(fingerprint, absl::StrFormat("%016x", stream.started.fingerprint()));
  EXPECT_EQ(Metric(R"(aft_model_info{model="encoder"})"), 1);
  EXPECT_EQ(Metric(R"(aft_build_info{version="test"})"), 1);
}

TEST_F(MetricsTest, PrometheusLintFindsNoFault) {
  const char* const folder = std::getenv("AFT_PROMETHEUS");
  if (folder == nullptr) GTEST_SKIP() << "no promtool: AFT_PROMETHEUS is not set";
  Start();
  CallEveryMethod();
  const std::string answer = server_->Metrics();
  const std::string page = answer.substr(answer.find("\r\n\r\n") + 4);
  const client::Ended lint =
      client::RunToEnd({absl::StrCat(folder, "/promtool"), "check", "metrics"}, page);
  EXPECT_EQ(lint.code, 0);
  EXPECT_EQ(lint.out + lint.err, "");
}

}  // namespace
}  // namespace aft::server
