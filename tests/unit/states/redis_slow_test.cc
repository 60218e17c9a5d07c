// Calls with many bytes, to a Redis that reads them slowly.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "server/states/redis_client.h"
#include "tests/unit/states/redis_fixture.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class SlowRedisTest : public testing::Test {
 protected:
  std::unique_ptr<RedisClient> Connect(const FakeRedis& redis, milliseconds timeout) {
    RedisConfig config;
    config.address = redis.address();
    config.timeout = timeout;
    auto client = std::make_unique<RedisClient>(config, "", metrics_);
    while (metrics_.redis_up.Value() != 1) std::this_thread::yield();
    return client;
  }
  static std::future<absl::StatusCode> Call(RedisClient& client, const std::string& name,
                                            RedisCommand command) {
    auto done = std::make_shared<std::promise<absl::StatusCode>>();
    client.Call(name, {std::move(command)}, 100, [done](const RedisClient::Replies& replies) {
      done->set_value(replies.status().code());
    });
    return done->get_future();
  }
  static void WaitUntil(steady_clock::time_point time) {
    while (steady_clock::now() < time) std::this_thread::yield();
  }

  prometheus::Registry registry_;
  StateMetrics metrics_{registry_};
};

TEST_F(SlowRedisTest, ALargeStateThatArrivesSteadilyEndsNoCall) {
  constexpr size_t kLarge = 20'000'000;
  constexpr milliseconds kTimeout{1500};
  constexpr milliseconds kQuarter{550};
  std::atomic<steady_clock::time_point> began = steady_clock::time_point();
  // Reads the last quarter when one and a half timeouts are over.
  FakeRedis redis([](const RedisCommand&) { return "+OK\r\n"; }, /*login=*/true,
                  [&](size_t read) {
                    const auto quarter = static_cast<int>(std::min<size_t>(read / (kLarge / 4), 3));
                    WaitUntil(began.load() + quarter * kTimeout / 2);
                  });
  const auto client = Connect(redis, kTimeout);
  began = steady_clock::now();
  auto large = Call(*client, "ada", {"SET", "x", std::string(kLarge, 'x')});
  auto small = Call(*client, "bob", {"GET", "y"});
  while (small.wait_for(milliseconds(0)) != std::future_status::ready) client->Expire();
  EXPECT_EQ(large.get(), absl::StatusCode::kOk);
  EXPECT_EQ(small.get(), absl::StatusCode::kOk);
  EXPECT_GT(steady_clock::now() - began.load(), kTimeout);
  EXPECT_EQ(redis.connections(), 1);
}

TEST_F(SlowRedisTest, ATransferThatHardlyAdvancesEnds) {
  // 4 KiB in 3 ms are too slow, though some bytes are moved within each timeout.
  FakeRedis redis([](const RedisCommand&) { return "+OK\r\n"; }, /*login=*/true,
                  [](size_t read) {
                    if (read > 4096) WaitUntil(steady_clock::now() + milliseconds(3));
                  });
  const auto client = Connect(redis, milliseconds(200));
  auto large = Call(*client, "ada", {"SET", "x", std::string(2'000'000, 'x')});
  EXPECT_EQ(large.get(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace aft::server
