// How requests over HTTP end in a drain: those that wait for Redis, those whose body still arrives,
// those whose clients do not read, and those of a connection that is kept. Also how those that need
// Redis end when their token is revoked, or the state is too large.
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/http/fixture.h"
#include "tests/integration/known_clients.h"
#include "tests/support/captured_log.h"
#include "tests/support/redis_server.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

// A server whose Redis has one record, that of a stored response. The first command that reads the
// record waits until the test sets `go_on_`.
class HttpSlowRedisTest : public testing::Test {
 protected:
  // Starts the server. Returns a response that it has stored.
  Json Store() {
    config_.drain.grace = std::chrono::minutes(1);
    UseStateKey(folder_, config_);
    config_.states.redis.address = redis_.address();
    config_.states.redis.timeout = std::chrono::minutes(1);
    server_ = std::make_unique<HttpApi>(config_);
    server_->WaitForMetric("aft_states_redis_up", 1);
    return server_->Post("/v1/responses", {{"input", "x"}, {"max_output_tokens", 1}}, kToken)
        .json();
  }

  // Sends a request for the response.
  TcpConnection Ask(const std::string& method, const Json& response) {
    TcpConnection connection(server_->address());
    connection.Send(absl::StrCat(method, " /v1/responses/", response["id"].get<std::string>(),
                                 " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", kToken,
                                 "\r\n"));
    return connection;
  }

  std::string AnswerTo(const RedisCommand& command) {
    if (command[0] == "EVAL") {  // the first stores: script, 4, four keys, id, record
      if (scripts_++ == 0) record_ = command[8];
      return ":-1\r\n";
    }
    if (!std::exchange(is_asked_, true)) {
      asked_.set_value();
      go_on_.get_future().wait();
    }
    if (command[0] == "STRLEN") return absl::StrCat(":", record_.size(), "\r\n");
    const std::string part = record_.substr(0, std::stoul(command[3]) + 1);  // GETRANGE
    return absl::StrCat("$", part.size(), "\r\n", part, "\r\n");
  }

  static constexpr char kToken[] = "Authorization: Bearer old\r\n";
  const TempFolder folder_;
  ServerConfig config_ = WithHttp();
  std::promise<void> asked_;
  std::promise<void> go_on_;
  std::atomic<int> scripts_ = 0;  // that Redis has received
  bool is_asked_ = false;
  std::string record_;
  FakeRedis redis_{[this](const RedisCommand& command) { return AnswerTo(command); }};
  std::unique_ptr<HttpApi> server_;  // last: it uses Redis
};

TEST_F(HttpSlowRedisTest, AStoredResponseThatWaitsForRedisIsSentInADrain) {
  const Json stored = Store();
  const TcpConnection waits = Ask("GET", stored);
  asked_.get_future().wait();
  auto drain = std::async(std::launch::async, [this] { return server_->server().Drain(); });
  // A server that did not wait for the response would have closed the connection by then.
  EXPECT_EQ(drain.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  go_on_.set_value();
  EXPECT_EQ(ParseReply(waits.ReadAll()).json(), stored);
  EXPECT_TRUE(drain.get());
}

TEST_F(HttpSlowRedisTest, AStoredResponseIsNeitherSentNorDeletedOnceItsTokenIsRevoked) {
  config_.security.clients_file = folder_.File("clients");
  Replace(config_.security.clients_file, ClientEntry("a", "old"));
  const Json stored = Store();
  const TcpConnection gets = Ask("GET", stored);
  asked_.get_future().wait();
  const TcpConnection deletes = Ask("DELETE", stored);
  server_->WaitForMetric("aft_states_redis_waiting", 1);
  Replace(config_.security.clients_file, ClientEntry("a", "new"));
  EXPECT_TRUE(server_->server().Reload(config_).ok());
  go_on_.set_value();
  for (const TcpConnection* const connection : {&gets, &deletes}) {
    const HttpReply reply = ParseReply(connection->ReadAll());
    EXPECT_EQ(reply.status, 401) << reply.body;
    EXPECT_EQ(reply.json()["error"]["message"], "authorization: unknown token");
  }
  EXPECT_EQ(scripts_, 1);
}

TEST_F(HttpSlowRedisTest, AStoredResponseThatIsTooLargeForThisServerCanBeDeleted) {
  go_on_.set_value();
  const Json stored = Store();
  config_.states.max_client_bytes = 1000;
  server_.reset();
  server_ = std::make_unique<HttpApi>(config_);
  server_->WaitForMetric("aft_states_redis_up", 1);
  const HttpReply got = ParseReply(Ask("GET", stored).ReadAll());
  EXPECT_EQ(got.status, 429);
  EXPECT_THAT(got.json()["error"].value("message", ""), testing::StartsWith("states: "));
  EXPECT_THAT(got.head, testing::Not(testing::HasSubstr("Retry-After")));
  EXPECT_THAT(got.head, testing::HasSubstr("x-should-retry: false\r\n"));
  const HttpReply deleted = ParseReply(Ask("DELETE", stored).ReadAll());
  EXPECT_EQ(deleted.status, 200) << deleted.body;
  EXPECT_EQ(scripts_, 2);
}

TEST(HttpDrainTest, ARequestWhoseBodyStillArrivesIsToldToComeAgain) {
  ServerConfig config = WithHttp();
  config.drain.grace = std::chrono::minutes(1);
  HttpApi server(config);
  const std::string body = R"({"prompt": "x"})";
  const std::string request = HttpPost("/v1/completions", body);
  const TcpConnection sends(server.address());
  sends.Send(request.substr(0, request.size() - body.size()));
  server.WaitForMetric("aft_memory_used_bytes", kCall + 2 * static_cast<double>(body.size()));
  auto drain = std::async(std::launch::async, [&server] { return server.server().Drain(); });
  while (TcpConnection(server.address()).TrySend("x")) std::this_thread::yield();
  // A server that did not wait for the body would have closed the connection by then.
  EXPECT_EQ(drain.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  sends.TrySend(body);
  const HttpReply reply = ParseReply(sends.ReadAll());
  EXPECT_EQ(reply.status, 503);
  EXPECT_THAT(reply.head, testing::HasSubstr("Retry-After: 1\r\n"));
  EXPECT_TRUE(drain.get());
}

TEST(HttpDrainTest, AConnectionEndsWithItsNextAnswerInTheLameDuck) {
  ServerConfig config = WithHttp();
  config.drain.lame_duck = std::chrono::hours(1);
  HttpApi server(config);
  const std::string request = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const TcpConnection kept(server.address());
  kept.Send(request);
  EXPECT_THAT(kept.ReadTo("}\n"), testing::HasSubstr("Connection: keep-alive\r\n"));
  auto drain = std::async(std::launch::async, [&server] { return server.server().Drain(); });
  server.WaitForMetric("aft_draining", 1);
  const TcpConnection later(server.address());
  for (const TcpConnection* const connection : {&kept, &later}) {
    connection->Send(request);
    const HttpReply reply = ParseReply(connection->ReadAll());
    EXPECT_EQ(reply.status, 200);
    EXPECT_THAT(reply.head, testing::HasSubstr("Connection: close\r\n"));
  }
  server.server().RequestDrain(/*lame_duck=*/false);
  EXPECT_TRUE(drain.get());
}

TEST(HttpDrainTest, AReaderThatStopsDelaysTheDrainNoLongerThanTheGrace) {
  const CapturedLog log;
  ServerConfig config = WithHttp();
  config.drain.grace = std::chrono::milliseconds(100);
  config.limits.write_stall = std::chrono::hours(1);
  config.limits.max_stream_buffer_bytes = 1 << 30;
  HttpApi server(config);
  const Json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}},
                     {"max_completion_tokens", 10'000},  // more bytes than sockets hold
                     {"logprobs", true},
                     {"top_logprobs", 20},
                     {"ignore_eos", true},
                     {"stream", true}};
  const TcpConnection stops(server.address(), /*receive_buffer=*/4096);
  stops.Send(HttpPost("/v1/chat/completions", body.dump()));
  server.WaitForMetric("aft_request_finished_total{model=\"fake\",reason=\"length\"}", 1);
  EXPECT_TRUE(server.server().Drain());
  const std::vector<LogLine> lines = log.Lines("request.done");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["code"], "UNAVAILABLE");
}

}  // namespace
}  // namespace aft::server
