// How a drain ends requests over HTTP: those that wait for Redis, and those whose clients do not
// read.
#include <chrono>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/http/fixture.h"
#include "tests/support/captured_log.h"
#include "tests/support/redis_server.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

TEST(HttpDrainTest, AStoredResponseThatWaitsForRedisIsSent) {
  std::promise<void> asked;
  std::promise<void> go_on;
  bool is_asked = false;
  std::string record;
  FakeRedis redis([&](const RedisCommand& command) -> std::string {
    if (command[0] == "EVAL") {  // stores the response: script, 4, four keys, id, record
      record = command[8];
      return ":-1\r\n";
    }
    if (!std::exchange(is_asked, true)) {
      asked.set_value();
      go_on.get_future().wait();
    }
    if (command[0] == "STRLEN") return absl::StrCat(":", record.size(), "\r\n");
    const std::string part = record.substr(0, std::stoul(command[3]) + 1);  // GETRANGE
    return absl::StrCat("$", part.size(), "\r\n", part, "\r\n");
  });
  const TempFolder folder;
  WriteBytes(folder.File("key"), std::string(32, 'k'));
  ServerConfig config = WithHttp();
  config.drain.grace = std::chrono::minutes(1);
  config.states.key_files = {folder.File("key")};
  config.states.redis.address = redis.address();
  config.states.redis.timeout = std::chrono::minutes(1);
  HttpApi server(config);
  server.WaitForMetric("aft_states_redis_up", 1);
  const Json stored =
      server.Post("/v1/responses", {{"input", "x"}, {"max_output_tokens", 1}}).json();
  const TcpConnection waits(server.address());
  waits.Send(absl::StrCat("GET /v1/responses/", stored["id"].get<std::string>(),
                          " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
  asked.get_future().wait();
  auto drain = std::async(std::launch::async, [&server] { return server.server().Drain(); });
  // A server that did not wait for the response would have closed the connection by then.
  EXPECT_EQ(drain.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  go_on.set_value();
  EXPECT_EQ(ParseReply(waits.ReadAll()).json(), stored);
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
