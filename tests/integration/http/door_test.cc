// Answers of HTTP that need no call: headers for pages of other origins, the codes of errors,
// readiness, coded bodies, and the metrics and log lines of these requests. Also how connections
// are named, limited and read.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/http/fixture.h"
#include "tests/support/captured_log.h"

namespace aft::server {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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

TEST(HttpDoorTest, AStarAllowsEveryHostAndOrigin) {
  ServerConfig config = WithHttp();
  config.http.allow_origins = config.http.allowed_hosts = {"*"};
  HttpApi server(config);
  const HttpReply reply = server.Ask(
      "GET /v1/models HTTP/1.1\r\nHost: any.example\r\nOrigin: https://other.example\r\n"
      "Connection: close\r\n\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_THAT(reply.head, HasSubstr("Access-Control-Allow-Origin: https://other.example\r\n"));
}

TEST(HttpDoorTest, OnlyAReadyModelIsListedAndMakesTheServerHealthy) {
  const FakeModels fakes;
  fakes.loads->Hold();
  TestServer server(WithHttp(), FakeLoader(fakes), fakes);
  const auto ask = [&server](const std::string& request) {
    const TcpConnection connection(server.server().http_address());
    connection.Send(request);
    return ParseReply(connection.ReadAll());
  };
  const auto get = [&ask](const std::string& path) {
    return ask("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  };
  const HttpReply loading = get("/health");
  EXPECT_EQ(loading.status, 503);
  EXPECT_THAT(loading.head, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_EQ(get("/v1/models").json()["data"].size(), 0U);
  EXPECT_EQ(get("/v1/models/fake").status, 404);
  fakes.loads->Resume();
  while (get("/health").status != 200) std::this_thread::yield();
  EXPECT_EQ(get("/v1/models").json()["data"].size(), 1U);
  server.control().FailNext(FakeCall::kSubmit, absl::UnavailableError("device lost"));
  EXPECT_EQ(ask(HttpPost("/v1/completions", R"({"prompt": "a"})")).status, 503);
  while (get("/health").status != 503) std::this_thread::yield();
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

TEST(HttpDoorTest, ACodedBodyIsRefusedByName) {
  HttpApi server;
  const Json ask = {{"prompt", "x"}, {"max_tokens", 2}, {"seed", 1}};
  const HttpReply coded = server.Post("/v1/completions", ask, "Content-Encoding: gzip\r\n");
  EXPECT_EQ(coded.status, 415);
  EXPECT_EQ(coded.json()["error"]["param"], "Content-Encoding");
  EXPECT_EQ(server.Post("/v1/completions", ask, "Content-Encoding: identity\r\n").status, 200);
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

TEST(HttpDoorTest, AnAddressOfVersion6IsNamedByItsNetwork) {
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  const void* const raw = &loopback;
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  const bool there = bind(fd, static_cast<const sockaddr*>(raw), sizeof(loopback)) == 0;
  close(fd);
  if (!there) GTEST_SKIP() << "no IPv6 here";
  ServerConfig config = WithHttp();
  config.http_address = "[::1]:0";
  const CapturedLog log;
  HttpApi server(config);
  EXPECT_EQ(server.Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status, 200);
  const auto lines = log.Lines("request.done");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["client"], "::/64");
  EXPECT_THAT(lines[0]["peer"], StartsWith("ipv6:%5B::1%5D:"));
}

// A client must not fill the memory of the server while its request runs.
TEST(HttpDoorTest, BytesBehindARunningRequestWaitOutsideTheServer) {
  struct Sender : TcpConnection {
    using TcpConnection::fd;
    using TcpConnection::TcpConnection;
  };
  HttpApi server;
  server.control().Hold();
  const Sender sender(server.address());
  sender.Send(HttpPost("/v1/completions", R"({"prompt": "a"})"));
  server.control().WaitUntilBlocked();
  const timeval second{1, 0};
  ASSERT_EQ(setsockopt(sender.fd(), SOL_SOCKET, SO_SNDTIMEO, &second, sizeof(second)), 0);
  EXPECT_FALSE(sender.TrySend(std::string(size_t{64} << 20, 'x')));
  server.control().Resume();
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

// An id gives access to its state, here or on another server.
TEST(HttpDoorTest, TheLogDoesNotShowTheIdOfAnUnknownResponse) {
  const CapturedLog log;
  HttpApi server;
  const std::string id = "resp_" + std::string(32, 'a');
  const HttpReply reply = server.Get("/v1/responses/" + id);
  EXPECT_EQ(reply.status, 404);
  EXPECT_THAT(reply.body, HasSubstr("Response with id \\\"" + id + "\\\" not found."));
  EXPECT_EQ(server.Get("/v1/responses/" + std::string(15'000, '"')).status, 404);
  const std::vector<LogLine> lines = log.Lines("request.done");
  EXPECT_EQ(lines.size(), 2U);
  for (const LogLine& line : lines) EXPECT_EQ(line["reason"], "there is no such response");
  EXPECT_THAT(log.Text(), Not(HasSubstr(id)));
}

// Each text is refused by its length, or cut. A quote takes four bytes in a quoted text of the log.
TEST(HttpDoorTest, NoTextOfAClientMakesALongLineInTheLog) {
  const CapturedLog log;
  HttpApi server;
  const std::string text(6'000, '"');
  for (const char* header : {"x-request-id", "traceparent", "aft-cache-salt", "Authorization",
                             "Host", "Origin", "User-Agent"}) {
    server.Get("/v1/models", absl::StrCat(header, ": ", text, "\r\n"));
  }
  const std::vector<Json> bodies = {
      {{"prompt", "x"}, {"model", text}},    {{"prompt", "x"}, {text, 1}},
      {{"prompt", "x"}, {"stop", text}},     {{"prompt", "x"}, {"logit_bias", {{text, 1}}}},
      {{"prompt", "x"}, {"priority", text}}, {{"prompt", "x"}, {"user", text}}};
  for (const Json& body : bodies) server.Post("/v1/completions", body);
  server.Post("/v1/chat/completions", {{"messages", {{{"role", text}, {"content", "x"}}}}});
  server.Post("/v1/responses", {{"input", "x"}, {"previous_response_id", text}});
  EXPECT_GE(log.Lines("request.done").size(), bodies.size() + 2);  // those of the posts and others
  for (const absl::string_view line : absl::StrSplit(log.Text(), '\n')) {
    EXPECT_LT(line.size(), 2'000U) << line.substr(0, 300);
  }
}

}  // namespace
}  // namespace aft::server
