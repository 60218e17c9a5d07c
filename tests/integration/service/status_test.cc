// What the metrics port tells people, probes and Prometheus about the server.
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "base/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/server_fixture.h"
#include "tests/support/captured_log.h"
#include "tests/support/tcp.h"

namespace aft::server {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class StatusTest : public testing::Test {
 protected:
  std::string Get(const std::string& path) const {
    return HttpGet(server_->server().metrics_address(), path);
  }
  json Status() const {
    const std::string answer = Get("/status.json");
    EXPECT_THAT(answer, HasSubstr("\r\nContent-Type: application/json\r\n"));
    return json::parse(answer.substr(answer.find("\r\n\r\n")));
  }
  bool Serving() const {
    return server_->Health() == grpc::health::v1::HealthCheckResponse::SERVING;
  }
  // The status of gRPC's health service. /readyz must agree with it.
  bool Ready() const {
    const bool ready = Serving();
    EXPECT_THAT(Get("/readyz"), StartsWith(ready ? "HTTP/1.1 200 " : "HTTP/1.1 503 "));
    EXPECT_EQ(Status()["ready"], ready);
    return ready;
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(StatusTest, ReportsModelsAndTheConfigInForce) {
  ServerConfig config = TestConfigWithEncoder();
  config.http_address = "127.0.0.1:0";  // a second part of the program's memory
  server_ = std::make_unique<TestServer>(config);
  const json status = Status();
  EXPECT_EQ(status["version"], "test");
  EXPECT_EQ(status["state"], "ready");
  EXPECT_EQ(status["alive"], true);
  EXPECT_EQ(status["address"], server_->server().address());
  EXPECT_THAT(std::string(status["started"]), testing::MatchesRegex("....-..-..T..:..:...00:00"));
  ASSERT_EQ(status["models"].size(), 2);

  const json& memory = status["memory"];
  EXPECT_EQ(memory["limit"], MemoryLimit());
  EXPECT_LE(memory["planned"], memory["limit"]);
  int64_t planned = 0;
  for (const json& part : memory["parts"]) planned += int64_t{part["bytes"]};
  EXPECT_EQ(memory["planned"], planned);
  EXPECT_EQ(server_->Metric("aft_memory_machine_bytes"), static_cast<double>(MemoryLimit()));
  EXPECT_EQ(server_->Metric("aft_memory_planned_bytes"), static_cast<double>(planned));
  EXPECT_EQ(server_->Metric("aft_memory_planned_bytes{use=\"states\"}"),
            static_cast<double>(config.states.max_bytes));

  v1::ListResponse list;
  grpc::ClientContext context;
  ASSERT_TRUE(server_->models().List(&context, {}, &list).ok());
  for (const int i : {0, 1}) {
    const json& model = status["models"][i];
    EXPECT_EQ(model["name"], list.models(i).name());
    EXPECT_EQ(model["state"], "MODEL_STATE_READY");
    EXPECT_EQ(model["slots"], list.models(i).slots());
    EXPECT_EQ(model["fingerprint"], std::to_string(list.models(i).fingerprint()));
    EXPECT_EQ(model["versions"][0]["version"], "1");
    EXPECT_EQ(model["versions"][0]["fingerprint"], model["fingerprint"]);
  }
  EXPECT_NE(status["models"][0]["fingerprint"], "0");
  EXPECT_THAT(std::string(status["config"]),
              AllOf(HasSubstr("name: \"encoder\""), HasSubstr("level: \"info\"")));

  config.log.level = "error";
  ASSERT_TRUE(server_->server().Reload(config).ok());
  EXPECT_THAT(std::string(Status()["config"]), HasSubstr("level: \"error\""));
  const CapturedLog log;
  RunToEnd(*server_, Request("x", 1));
  EXPECT_EQ(log.Lines("request.done").size(), 0U);
  config.log.level = "info";  // later tests in this process need this level
  ASSERT_TRUE(server_->server().Reload(config).ok());
  RunToEnd(*server_, Request("x", 1));
  EXPECT_EQ(log.Lines("request.done").size(), 1U);
  config.limits.max_prompt_bytes += 1;
  ASSERT_FALSE(server_->server().Reload(config).ok());
  EXPECT_EQ(
      Status()["config"].get<std::string>().find(std::to_string(config.limits.max_prompt_bytes)),
      std::string::npos);
}

TEST_F(StatusTest, ReadinessAgreesWithHealth) {
  const FakeModels fakes;
  fakes.loads->Hold();
  ServerConfig config = TestConfigWithMetrics();
  config.drain.grace = std::chrono::hours(1);
  server_ = std::make_unique<TestServer>(config, FakeLoader(fakes), fakes);
  EXPECT_FALSE(Ready());
  EXPECT_EQ(Status()["state"], "starting");
  EXPECT_EQ(Status()["models"][0]["state"], "MODEL_STATE_LOADING");
  EXPECT_THAT(Get("/readyz"),
              HasSubstr("not ready: the server is starting\nfake: MODEL_STATE_LOADING\n"));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 "));
  fakes.loads->Resume();
  ASSERT_TRUE(server_->server().WaitReady().ok());
  while (!Serving()) std::this_thread::yield();  // the health service is updated a moment later
  EXPECT_TRUE(Ready());
  EXPECT_EQ(Status()["models"][0]["state"], "MODEL_STATE_READY");

  // During a drain the metrics port still serves every page, although gRPC's port is closed.
  server_->control().Hold();
  GenerateStream stream(server_->inference(), Request("endless", 1'000'000));
  server_->control().AllowSteps(1);
  ASSERT_TRUE(stream.ReadUntil(v1::GenerateResponse::kDelta));
  std::thread drain([this] { server_->server().Drain(); });
  server_->WaitForMetric("aft_draining", 1);
  EXPECT_THAT(Get("/readyz"),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("the server is draining")));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get("/status"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(Status()["state"], "draining");
  stream.context().TryCancel();
  server_->control().Resume();
  stream.Finish();
  drain.join();
}

TEST_F(StatusTest, AFailedModelIsNamedAndFinallyFailsLiveness) {
  ServerConfig config = TestConfigWithMetrics();
  config.health.liveness_grace = std::chrono::milliseconds(0);
  server_ = std::make_unique<TestServer>(config);
  EXPECT_TRUE(Ready());
  server_->control().FailNext(FakeCall::kSubmit, absl::UnavailableError("device <b>lost</b>\xff"));
  EXPECT_FALSE(GenerateStream(server_->inference(), Request("x", 1)).Finish().ok());
  EXPECT_FALSE(Ready());
  EXPECT_THAT(Get("/readyz"), HasSubstr("fake: MODEL_STATE_FAILED: its device is lost: "
                                        "UNAVAILABLE: device <b>lost</b>"));
  EXPECT_THAT(std::string(Status()["models"][0]["error"]), HasSubstr("device <b>lost</b>"));
  while (Status()["alive"]) continue;  // until the health watch runs again
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 503 "));
}

TEST_F(StatusTest, ThePageRunsOnlyItsOwnScript) {
  server_ = std::make_unique<TestServer>(TestConfigWithMetrics());
  const std::string page = Get("/status");
  EXPECT_THAT(page, HasSubstr("\r\nContent-Type: text/html; charset=utf-8\r\n"));
  for (const char* rule : {"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-",
                           "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"}) {
    EXPECT_THAT(page, HasSubstr(rule));
  }
  EXPECT_THAT(page, AllOf(Not(HasSubstr("unsafe-inline")), HasSubstr("X-Frame-Options: DENY\r\n"),
                          HasSubstr("X-Content-Type-Options: nosniff\r\n")));
  // The page loads nothing from another host and never inserts markup.
  for (const char* word :
       {"src=", "innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", " style="}) {
    EXPECT_THAT(page, Not(HasSubstr(word)));
  }
  EXPECT_THAT(Get("/"), AllOf(StartsWith("HTTP/1.1 302 "), HasSubstr("\r\nLocation: status\r\n")));
  EXPECT_THAT(Get("/nothing"),
              HasSubstr("not found; there are / /healthz /metrics /readyz /status /status.json\n"));
}

TEST_F(StatusTest, NoSecretIsInTheConfig) {
  ServerConfig config = TestConfigWithMetrics();
  config.states.key_files = {"key"};
  for (const char* address :
       {"redis://user:hunter2@host:6379", "user:hunter2@host:6379", "hunter2@host:6379"}) {
    config.states.redis.address = address;
    const auto server = Server::Create(config, FakeLoader(), {.version = "test"});
    EXPECT_THAT(std::string(server.status().message()),
                AllOf(HasSubstr("states.redis.address: "), HasSubstr("password_file"),
                      Not(HasSubstr("hunter2"))));
  }
}

}  // namespace
}  // namespace aft::server
