// Servers that are replaced under a client that retries.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/lib/aft_client.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"

namespace aft::server {
namespace {

constexpr char kRunning[] = R"(aft_requests_running{model="fake"})";
constexpr char kWaiting[] = R"(aft_requests_waiting{model="fake"})";

TEST(RolloutTest, ADrainBesideASecondServerFailsNoRequestOfAClientThatRetries) {
  constexpr int kStreams = 200;
  constexpr int kCallsOfEach = 3;
  ServerConfig config = TestConfigWithMetrics();
  config.models[0].slots = 64;
  config.models[0].max_step_tokens = 128;
  config.drain.lame_duck = std::chrono::milliseconds(0);
  TestServer leaving(config);
  TestServer staying(config);
  const auto client =
      *client::Client::Create({.address = absl::StrCat("ipv4:", leaving.server().address(), ",",
                                                       staying.server().address())});
  // The client is connected to both: each has answered.
  while (leaving.Metric(RequestsTotal("OK", "Generate")) == 0 ||
         staying.Metric(RequestsTotal("OK", "Generate")) == 0) {
    ASSERT_TRUE(client->Generate(Request("warm", 1)).ok());
  }

  leaving.control().Hold();
  staying.control().Hold();
  std::atomic<int> right = 0;
  std::vector<std::thread> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.emplace_back([&, i] {
      for (int call = 0; call < kCallsOfEach; ++call) {
        const v1::GenerateRequest request = Request("prompt", 20, i * kCallsOfEach + call);
        const auto result = client->Generate(request);
        EXPECT_TRUE(result.ok()) << result.status();
        if (!result.ok()) continue;
        const std::vector<TokenId> tokens(result->token_ids.begin(), result->token_ids.end());
        if (tokens == Expected(request)) ++right;
      }
    });
  }
  // Half of them went to each; of those, some are in slots and the rest waits.
  leaving.WaitForMetric(kRunning, 64);
  leaving.WaitForMetric(kWaiting, kStreams / 2 - 64);
  std::thread drain([&] { leaving.server().Drain(); });
  leaving.WaitForMetric("aft_draining", 1);
  leaving.control().Resume();
  staying.control().Resume();
  for (std::thread& stream : streams) stream.join();
  drain.join();
  EXPECT_EQ(right, kStreams * kCallsOfEach);
}

}  // namespace
}  // namespace aft::server
