// Calls to a Redis that is slow, or that closes the connection or contradicts itself in a call.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/observability/log.h"
#include "server/states/redis_client.h"
#include "server/states/redis_record.h"
#include "tests/support/manual_clock.h"
#include "tests/unit/states/redis_fixture.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;

// The time of the calls stands still unless the fake Redis moves it.
class SlowRedisTest : public RedisTest {
 protected:
  std::unique_ptr<RedisClient> Connect(const FakeRedis& redis, milliseconds timeout) {
    auto client = RedisTest::Connect(redis.address(), timeout, [this] { return clock_.Now(); });
    WaitUntilUp(metrics_);
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

  ManualClock clock_;
};

TEST_F(SlowRedisTest, ACallThatEndsBecauseRedisHangsUpIsLogged) {
  FakeRedis redis([](const RedisCommand&) -> std::string { return FakeRedis::kHangUp; });
  const auto client = Connect(redis, std::chrono::minutes(1));
  testing::internal::CaptureStderr();
  EXPECT_EQ(Call(*client, "ada", {"GET", "x"}).get(), absl::StatusCode::kUnavailable);
  log::Flush(std::chrono::hours(1));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("level=error event=states.redis_hung_up error="));
}

// The large state is sent twice, because the connection breaks after the timeout. Each time takes
// longer than the timeout.
TEST_F(SlowRedisTest, ALargeStateThatArrivesSteadilyEndsNoCall) {
  constexpr size_t kLarge = 10'000'000;
  constexpr milliseconds kTimeout{1000};
  constexpr milliseconds kQuarter{350};
  bool broken = false;
  // Reads the last quarter when the timeout is over.
  FakeRedis redis(
      [&](const RedisCommand& command) -> std::string {
        if (command[0] != "SET" || std::exchange(broken, true)) return "+OK\r\n";
        return FakeRedis::kHangUp;
      },
      /*login=*/true,
      [&, passed = size_t{0}](size_t read) mutable {
        if (read == 0) passed = 0;  // a new connection
        const size_t quarters = std::min<size_t>(read / (kLarge / 4), 3);
        clock_.Advance(kQuarter * (quarters - passed));
        passed = quarters;
      });
  const auto client = Connect(redis, kTimeout);
  const auto began = clock_.Now();
  auto large = Call(*client, "ada", {"SET", "x", std::string(kLarge, 'x')});
  auto small = Call(*client, "bob", {"GET", "y"});
  while (small.wait_for(milliseconds(0)) != std::future_status::ready) client->Expire();
  EXPECT_EQ(large.get(), absl::StatusCode::kOk);
  EXPECT_EQ(small.get(), absl::StatusCode::kOk);
  EXPECT_GT(clock_.Now() - began, 2 * kTimeout);
  EXPECT_EQ(redis.connections(), 2);
}

TEST_F(SlowRedisTest, ATransferThatHardlyAdvancesEnds) {
  // 4 KiB in 3 ms are too slow, though some bytes are moved within each timeout.
  FakeRedis redis([](const RedisCommand&) { return "+OK\r\n"; }, /*login=*/true,
                  [this](size_t read) {
                    if (read > 4096) clock_.Advance(milliseconds(3));
                  });
  const auto client = Connect(redis, milliseconds(200));
  auto large = Call(*client, "ada", {"SET", "x", std::string(2'000'000, 'x')});
  EXPECT_EQ(large.get(), absl::StatusCode::kUnavailable);
}

// A call gets no more time for the part of a long call in which it did not wait yet.
TEST_F(SlowRedisTest, ALongCallGivesNoTimeToACallThatComesAtItsEnd) {
  constexpr milliseconds kTimeout{200};
  std::promise<void> asked;
  std::promise<void> go_on;
  FakeRedis redis([&](const RedisCommand& command) {
    if (command[1] == "long") {
      asked.set_value();
      go_on.get_future().wait();
    } else {
      clock_.Advance(kTimeout * 2 / 5);
    }
    return "+OK\r\n";
  });
  const auto client = Connect(redis, kTimeout);
  Call(*client, "ada", {"GET", "long"});
  asked.get_future().wait();
  clock_.Advance(kTimeout * 9 / 10);
  for (const std::string key : {"a", "b", "c"}) Call(*client, "ada", {"GET", key});
  auto late = Call(*client, "ada", {"GET", "d"});
  go_on.set_value();
  EXPECT_EQ(late.get(), absl::StatusCode::kUnavailable);
}

TEST_F(SlowRedisTest, ACallOnWhichRedisHangsUpEachTimeEndsAlone) {
  std::promise<void> go_on;
  const std::shared_future<void> going_on = go_on.get_future().share();
  FakeRedis redis([&](const RedisCommand& command) -> std::string {
    going_on.wait();
    return command[1] == "bad" ? FakeRedis::kHangUp : "+OK\r\n";
  });
  const auto client = Connect(redis, std::chrono::minutes(1));
  auto bad = Call(*client, "ada", {"GET", "bad"});
  auto good = Call(*client, "bob", {"GET", "x"});
  go_on.set_value();
  EXPECT_EQ(bad.get(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(good.get(), absl::StatusCode::kOk);
  EXPECT_EQ(metrics_.redis_failed(RedisFailure::kBroken).Value(), 2);
  EXPECT_EQ(metrics_.redis_failed(RedisFailure::kUnsent).Value(), 0);
}

TEST_F(SlowRedisTest, ARedisThatEndsWhileNoCallUsesItIsTakenToBeDown) {
  auto redis = std::make_unique<FakeRedis>([](const RedisCommand&) { return ""; });
  const auto client = Connect(*redis, std::chrono::minutes(1));
  redis.reset();
  clock_.Advance(std::chrono::minutes(1));
  while (metrics_.redis_up.Value() != 0) client->Expire();
  EXPECT_EQ(client->CheckUp().code(), absl::StatusCode::kUnavailable);
}

// A call that comes during the check finds the new connection.
TEST_F(SlowRedisTest, AnIdleConnectionThatIsSilentIsReplacedAndNoCallFails) {
  constexpr milliseconds kTimeout{200};
  std::promise<void> checked;
  std::promise<void> go_on;
  FakeRedis redis(
      [&, pings = 0](const RedisCommand& command) mutable -> std::string {
        if (command[0] != "PING") return "+OK\r\n";
        if (++pings != 2) return "+PONG\r\n";
        checked.set_value();
        go_on.get_future().wait();
        return "";
      },
      /*login=*/false);
  const auto client = Connect(redis, kTimeout);
  clock_.Advance(std::chrono::minutes(1));
  client->Expire();
  checked.get_future().wait();
  auto call = Call(*client, "ada", {"GET", "x"});
  clock_.Advance(kTimeout * 3 / 5);
  go_on.set_value();
  EXPECT_EQ(call.get(), absl::StatusCode::kOk);
  EXPECT_EQ(redis.connections(), 2);
  EXPECT_EQ(metrics_.redis_failed(RedisFailure::kBroken).Value(), 0);
}

TEST_F(SlowRedisTest, OnlyErrorsThatAnotherServerMayNotHaveEndAnIdleConnection) {
  const std::vector<std::string> answers = {"+PONG", "-MISCONF disk", "-LOADING data", "+PONG"};
  std::atomic<size_t> pings = 0;
  FakeRedis redis(
      [&](const RedisCommand& command) {
        return command[0] == "PING" ? answers.at(pings++) + "\r\n" : "+OK\r\n";
      },
      /*login=*/false);
  const auto client = Connect(redis, std::chrono::minutes(1));
  clock_.Advance(std::chrono::seconds(6));
  while (pings < 2) client->Expire();
  EXPECT_EQ(Call(*client, "ada", {"GET", "x"}).get(), absl::StatusCode::kOk);  // after the check
  EXPECT_EQ(redis.connections(), 1);
  clock_.Advance(std::chrono::seconds(6));
  while (metrics_.redis_connects.Value() < 2) client->Expire();
  EXPECT_EQ(pings, 4);
}

TEST_F(SlowRedisTest, NoCallWaitsUntilAnIdleConnectionIsChecked) {
  std::vector<std::string> commands;
  auto redis = std::make_unique<FakeRedis>(
      [&](const RedisCommand& command) {
        commands.push_back(command[0]);
        return command[0] == "PING" ? "+PONG\r\n" : "+OK\r\n";
      },
      /*login=*/false);
  const auto client = Connect(*redis, std::chrono::minutes(1));
  std::promise<absl::StatusCode> ended;
  // Both calls are made on the client's thread, so the connection is idle only between them.
  client->Call("ada", {{"GET", "x"}}, 100, [&](const RedisClient::Replies&) {
    clock_.Advance(std::chrono::hours(1));
    client->Call("ada", {{"GET", "y"}}, 100, [&](const RedisClient::Replies& replies) {
      ended.set_value(replies.status().code());
    });
  });
  EXPECT_EQ(ended.get_future().get(), absl::StatusCode::kOk);
  redis.reset();  // its thread uses `commands`
  EXPECT_THAT(commands, testing::ElementsAre("PING", "GET", "GET"));
}

TEST_F(SlowRedisTest, ARecordThatNeverHasItsSizeEndsAtTheTimeout) {
  const int64_t now =
      std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  const std::string record = *SealRecord(sealer_, File("ada", Id('a')), now);
  int asked = 0;
  FakeRedis redis([&](const RedisCommand& command) {
    if (++asked > 100'000) return std::string("$0\r\n\r\n");  // a defect: ends the test
    if (command[0] == "STRLEN") return absl::StrCat(":", record.size() + 1, "\r\n");
    const size_t last = std::stoul(command[3]);
    const std::string text = record.substr(0, last + 1);
    return absl::StrCat("$", text.size(), "\r\n", text, "\r\n");
  });
  config_.redis.address = redis.address();
  config_.redis.timeout = milliseconds(200);
  EXPECT_EQ(Find(*Open(), "ada", Id('a')).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SlowRedisTest, AnAttemptWithoutMemoryEndsTheCallsThatWaitAndIsRepeated) {
  std::promise<void> waiting;
  std::promise<void> repeated;
  std::promise<absl::StatusCode> told;
  int attempts = 0;
  const auto open = [&](const auto&...) -> absl::StatusOr<std::unique_ptr<RedisConnection>> {
    if (++attempts == 2) repeated.set_value();
    if (attempts > 1) return absl::UnavailableError("down");
    waiting.get_future().wait();
    throw std::bad_alloc();
  };
  RedisConfig config;
  config.timeout = std::chrono::minutes(1);
  RedisClient client(config, metrics_, open);
  client.Call("ada", {{"GET", "x"}}, 100,
              [](const RedisClient::Replies&) { throw std::bad_alloc(); });
  client.Call("ada", {{"GET", "x"}}, 100, [&](const RedisClient::Replies& replies) {
    told.set_value(replies.status().code());
  });
  waiting.set_value();
  EXPECT_EQ(told.get_future().get(), absl::StatusCode::kUnavailable);
  repeated.get_future().wait();
}

}  // namespace
}  // namespace aft::server
