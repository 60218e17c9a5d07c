// A client that retries while servers are replaced.
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

constexpr char kWaiting[] = R"(aft_requests_waiting{model="fake"})";

TEST(RolloutTest, ADrainFailsNoRequestOfARetryingClientOfTwoServers) {
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
  // Waits until each server has answered, so that the client is connected to both.
  while (leaving.Metric(RequestsTotal("OK", "Generate")) == 0 ||
         staying.Metric(RequestsTotal("OK", "Generate")) == 0) {
    ASSERT_TRUE(client->Generate(Request("warm", 1)).ok());
  }

  // Each engine stops in the first step of a request.
  leaving.control().Hold();
  staying.control().Hold();
  GenerateStream first(leaving.inference(), Request("first", 20));
  GenerateStream second(staying.inference(), Request("second", 20));
  leaving.control().WaitUntilBlocked();
  staying.control().WaitUntilBlocked();
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
  // Each server has half of the streams. Later some are in slots of `leaving`, and the rest waits.
  leaving.WaitForMetric(kWaiting, kStreams / 2);
  staying.WaitForMetric(kWaiting, kStreams / 2);
  while (leaving.Metric(kWaiting) == kStreams / 2) leaving.control().AllowSteps(1);
  std::thread drain([&] { leaving.server().Drain(); });
  leaving.WaitForMetric("aft_model_state{model=\"fake\",state=\"draining\"}", 1);
  leaving.control().Resume();
  staying.control().Resume();
  for (std::thread& stream : streams) stream.join();
  EXPECT_EQ(right, kStreams * kCallsOfEach);
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
  drain.join();
  // Some requests were sent a second time, to `staying`.
  EXPECT_GT(staying.Metric(RequestsTotal("OK", "Generate")), kStreams * kCallsOfEach / 2 + 2);
}

}  // namespace
}  // namespace aft::server
