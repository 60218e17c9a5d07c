// Answers of HTTP that need no call: headers for pages of other origins, the codes of errors, and
// the metrics and log lines of these requests. Also the connections of one address.
#include <chrono>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/http/fixture.h"
#include "tests/support/captured_log.h"

namespace aft::server {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HttpDoorTest, PagesOfAllowedOriginsMayReadTheAnswer) {
  ServerConfig config = WithHttp();
  config.http.allow_origins = {"https://chat.example"};
  HttpApi server(config);
  const std::string origin = "Origin: https://chat.example\r\n";
  EXPECT_THAT(
      server.Get("/v1/models", origin).head,
      AllOf(HasSubstr("Access-Control-Expose-Headers: x-request-id, retry-after, retry-after-ms, "
                      "x-should-retry\r\n"),
            HasSubstr("Cross-Origin-Resource-Policy: cross-origin\r\n"),
            HasSubstr("Vary: Origin\r\n")));
  EXPECT_THAT(server
                  .Ask("OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + origin +
                       "Connection: close\r\nAccess-Control-Request-Method: POST\r\n\r\n")
                  .head,
              AllOf(HasSubstr("Access-Control-Allow-Methods: GET, POST, DELETE\r\n"),
                    HasSubstr("Access-Control-Max-Age: 600\r\n")));
}

TEST(HttpDoorTest, TheCodeSaysWhatWasNotFound) {
  HttpApi server;
  const auto code = [](const HttpReply& reply) {
    EXPECT_EQ(reply.status, 404) << reply.body;
    return reply.json()["error"].value("code", "");
  };
  EXPECT_EQ(code(server.Get("/v1/models/other")), "model_not_found");
  EXPECT_EQ(code(server.Post("/v1/completions", {{"model", "other"}, {"prompt", "a"}})),
            "model_not_found");
  EXPECT_EQ(code(server.Get("/v1/nothing")), "not_found");
  EXPECT_EQ(code(server.Get("/v1/responses/x")), "not_found");
  EXPECT_EQ(code(server.Post("/v1/responses", {{"input", "a"}, {"previous_response_id", "x"}})),
            "previous_response_not_found");
  EXPECT_EQ(server.Metric(RequestsTotal("NOT_FOUND", "ListModels", "")), 1);
}

TEST(HttpDoorTest, ABodyWhereNoneBelongsIsCountedAndLogged) {
  const CapturedLog log;
  HttpApi server;
  EXPECT_EQ(server.Get("/v1/responses/x", "Content-Length: 1\r\n").status, 400);
  EXPECT_EQ(server.Metric(RequestsTotal("INVALID_ARGUMENT", "GetState", "")), 1);
  EXPECT_EQ(server.Metric("aft_e2e_seconds_count{method=\"GetState\",model=\"\"}"), 1);
  const auto lines = log.Lines("request.done");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["reason"], "the request must have no body");
}

TEST(HttpDoorTest, OneAddressMayHaveHalfOfTheConnections) {
  ServerConfig config = WithHttp();
  config.http.max_connections = 6;
  HttpApi server(config);
  server.control().Hold();
  std::vector<TcpConnection> running;
  for (int waiting = 0; waiting < 3; ++waiting) {
    running.emplace_back(server.address())
        .Send(HttpPost("/v1/completions", R"({"model": "fake", "prompt": "a"})"));
    if (waiting == 0) server.control().WaitUntilBlocked();
    server.WaitForMetric("aft_requests_waiting{model=\"fake\"}", waiting);
  }
  const TcpConnection fourth(server.address());
  fourth.TrySend("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(fourth.ReadAll(), "");
  server.control().Resume();
  for (const TcpConnection& one : running) EXPECT_EQ(ParseReply(one.ReadAll()).status, 200);
}

// As in RefusalLogTest: many failed requests cannot fill the log.
TEST(HttpDoorTest, ManyUnknownResponsesGetAtMostTwentyLinesASecond) {
  const CapturedLog log;
  HttpApi server;
  constexpr int kLookups = 400;
  const auto begun = steady_clock::now();
  for (int i = 0; i < kLookups; ++i) EXPECT_EQ(server.Get("/v1/responses/x").status, 404);
  const auto seconds = std::chrono::floor<std::chrono::seconds>(steady_clock::now() - begun);
  const size_t lines = log.Lines("request.done").size();
  EXPECT_GE(lines, 20U);
  EXPECT_LE(lines, 20 * (static_cast<size_t>(seconds.count()) + 1));
  EXPECT_EQ(server.Metric(RequestsTotal("NOT_FOUND", "GetState", "")), kLookups);
}

}  // namespace
}  // namespace aft::server
