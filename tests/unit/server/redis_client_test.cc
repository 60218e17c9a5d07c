// What is not Redis, or does not behave like it.
#include "server/states/redis_client.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/observability/log.h"
#include "tests/unit/server/redis_fixture.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class RedisClientTest : public RedisTest {
 protected:
  // Answers every command so. "": not at all.
  void Answer(const std::string& bytes) {
    MutexLock lock(mutex_);
    answer_ = bytes;
  }
  std::string answer() {
    MutexLock lock(mutex_);
    return answer_;
  }

  std::unique_ptr<RedisClient> Connect(const std::string& address, milliseconds timeout) {
    RedisConfig config;
    config.address = address;
    config.timeout = timeout;
    return std::make_unique<RedisClient>(config, "", metrics_);
  }
  // A call that waits for its end.
  static RedisClient::Replies Ask(RedisClient& client, size_t max_bytes = 100'000,
                                  std::vector<RedisCommand> commands = {{"GET", "x"}}) {
    std::promise<RedisClient::Replies> done;
    client.Call(std::move(commands), max_bytes,
                [&](RedisClient::Replies replies) { done.set_value(Own(std::move(replies))); });
    return done.get_future().get();
  }
  double failed(RedisFailure failure) { return metrics_.redis_failed(failure).Value(); }
  void WaitUntilUp() {
    while (metrics_.redis_up.Value() != 1) std::this_thread::yield();
  }

  prometheus::Registry registry_;
  StateMetrics metrics_{registry_};
  Mutex mutex_;
  std::string answer_ ABSL_GUARDED_BY(mutex_) = "$2\r\nhi\r\n";
};

constexpr std::chrono::minutes kMinute{1};

TEST_F(RedisClientTest, GivesBackEveryKindOfReply) {
  FakeRedis redis([this](const RedisCommand&) { return answer(); });
  const auto client = Connect(redis.address(), kMinute);
  auto replies = Ask(*client, 1000, {{"GET", "a"}, {"GET", "b"}});
  ASSERT_TRUE(replies.ok()) << replies.status();
  ASSERT_EQ(replies->size(), 2);
  EXPECT_EQ((*replies)[1].text, "hi");
  Answer("*3\r\n:-7\r\n*1\r\n+OK\r\n$-1\r\n");
  replies = Ask(*client);
  ASSERT_TRUE(replies.ok()) << replies.status();
  ASSERT_EQ(replies->front().elements.size(), 3);
  EXPECT_EQ(replies->front().elements[0].integer, -7);
  EXPECT_EQ(replies->front().elements[1].elements[0].text, "OK");
  EXPECT_EQ(replies->front().elements[2].type, RedisReply::Type::kNil);
  Answer("-ERR no\r\n");
  replies = Ask(*client);
  ASSERT_TRUE(replies.ok()) << replies.status();
  EXPECT_EQ(replies->front().type, RedisReply::Type::kError);
  EXPECT_EQ(replies->front().text, "ERR no");
  EXPECT_EQ(redis.connections(), 1);
}

TEST_F(RedisClientTest, WhatIsNoReplyBreaksTheConnectionAndNothingElse) {
  FakeRedis redis([this](const RedisCommand&) { return answer(); });
  const auto client = Connect(redis.address(), kMinute);
  double broken = 0;
  for (const std::string& bytes :
       {std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), std::string("\0\0\0\0", 4),
        std::string("$-7\r\n"), std::string("$abc\r\n"), std::string(":1x\r\n"),
        std::string("*1025\r\n"), std::string("*2147483647\r\n"),
        std::string("*99999999999999999999\r\n"),
        std::string("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"),
        std::string("$2\r\nhi\r\n+more\r\n"), "+" + std::string(200'000, 'x'),
        "$300000\r\n" + std::string(300'000, 'x') + "\r\n",
        "$9223372036854775807\r\n" + std::string(200'000, 'x')}) {
    SCOPED_TRACE(bytes.substr(0, 40));
    Answer(bytes);
    WaitUntilUp();
    EXPECT_THAT(Ask(*client).status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("states.redis")));
    EXPECT_EQ(failed(RedisFailure::kBroken), ++broken);
    WaitUntilUp();
    Answer("$2\r\nhi\r\n");
    const auto replies = Ask(*client);
    ASSERT_TRUE(replies.ok()) << replies.status();
    EXPECT_EQ(replies->front().text, "hi");
  }
}

TEST_F(RedisClientTest, AReplyOfTheMostBytesIsTakenAndNoLongerOne) {
  FakeRedis redis([this](const RedisCommand&) { return answer(); });
  const auto client = Connect(redis.address(), kMinute);
  Answer("$1000\r\n" + std::string(1000, 'x') + "\r\n");
  EXPECT_TRUE(Ask(*client, answer().size()).ok());
  EXPECT_FALSE(Ask(*client, answer().size() - 1).ok());
}

TEST_F(RedisClientTest, ACallIsSentAgainOnceWhenTheConnectionBreaks) {
  std::atomic<int> calls = 0;
  std::atomic<int> hang_ups = 1;
  FakeRedis redis([&](const RedisCommand&) -> std::string {
    ++calls;
    return hang_ups-- > 0 ? FakeRedis::kHangUp : "$2\r\nhi\r\n";
  });
  const auto client = Connect(redis.address(), kMinute);
  EXPECT_TRUE(Ask(*client).ok());
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(redis.connections(), 2);
  hang_ups = 1000;
  EXPECT_EQ(Ask(*client).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(calls, 4);
  hang_ups = 0;
  WaitUntilUp();
  EXPECT_TRUE(Ask(*client).ok());
}

TEST_F(RedisClientTest, ErrorsThatAnotherServerMayNotHaveEndTheConnection) {
  FakeRedis redis([this](const RedisCommand&) { return answer(); });
  const auto client = Connect(redis.address(), kMinute);
  int connections = 1;
  for (const std::string code : {"READONLY", "LOADING", "NOAUTH", "MASTERDOWN"}) {
    SCOPED_TRACE(code);
    Answer("-" + code + " why\r\n");
    const auto replies = Ask(*client);
    ASSERT_TRUE(replies.ok()) << replies.status();
    EXPECT_EQ(replies->front().text, code + " why");
    Answer("-ERR READONLY\r\n");
    ASSERT_TRUE(Ask(*client).ok());
    Answer("$2\r\nhi\r\n");
    ASSERT_TRUE(Ask(*client).ok());
    EXPECT_EQ(redis.connections(), ++connections);
  }
  EXPECT_EQ(failed(RedisFailure::kBroken), 0);
}

TEST_F(RedisClientTest, AnOutageIsTwoLinesOfTheLog) {
  const auto serve = [this](const RedisCommand& command) {
    const std::string bytes = answer();
    return command[0] == "PING" && bytes[0] == '$' ? "+PONG\r\n" : bytes;
  };
  FakeRedis redis(serve, /*login=*/false);
  testing::internal::CaptureStderr();
  const auto client = Connect(redis.address(), kMinute);
  ASSERT_TRUE(Ask(*client).ok());
  Answer("nonsense\r\n");
  EXPECT_FALSE(Ask(*client).ok());
  for (int i = 0; i < 100; ++i) {
    client->Call({{"GET", "x"}}, 100, [](const RedisClient::Replies&) {});
  }
  Answer("$2\r\nhi\r\n");
  WaitUntilUp();
  ASSERT_TRUE(Ask(*client).ok());
  log::Flush(std::chrono::hours(1));
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2) << lines;
  const size_t down = lines.find("level=error event=states.redis_down");
  const size_t up = lines.find("level=info event=states.redis_up");
  EXPECT_LT(down, up);
  EXPECT_NE(up, std::string::npos);
  EXPECT_THAT(lines, HasSubstr("not an answer of Redis"));
}

TEST_F(RedisClientTest, OneThatStaysSilentIsLeftAlone) {
  FakeRedis redis([](const RedisCommand&) { return ""; }, /*login=*/false);
  const auto client = Connect(redis.address(), milliseconds(20));
  EXPECT_EQ(Ask(*client).status().code(), absl::StatusCode::kUnavailable);
  // It is known to be down, so that nobody waits for it: the answer is there before Call returns.
  for (int i = 0; i < 1000; ++i) {
    bool done = false;
    client->Call({{"GET", "x"}}, 100, [&](const RedisClient::Replies& replies) {
      EXPECT_EQ(replies.status().code(), absl::StatusCode::kUnavailable);
      done = true;
    });
    ASSERT_TRUE(done);
  }
  EXPECT_EQ(metrics_.redis_connects.Value(), 0);
  EXPECT_EQ(metrics_.redis_waiting.Value(), 0);
}

TEST_F(RedisClientTest, OneThatFallsSilentIsFoundAgainWhenItAnswers) {
  FakeRedis redis([this](const RedisCommand&) { return answer(); });
  const auto client = Connect(redis.address(), milliseconds(200));
  while (!Ask(*client).ok()) {
  }
  Answer("");
  EXPECT_EQ(Ask(*client).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(failed(RedisFailure::kBroken), 1);
  Answer("$2\r\nhi\r\n");
  while (!Ask(*client).ok()) {
  }
}

TEST_F(RedisClientTest, SoManyMayWaitAndNoMore) {
  std::promise<void> asked;
  std::promise<void> go_on;
  std::atomic<int> calls = 0;
  FakeRedis redis([&](const RedisCommand&) {
    if (calls++ == 0) {
      asked.set_value();
      go_on.get_future().wait();
    }
    return "$2\r\nhi\r\n";
  });
  const auto client = Connect(redis.address(), kMinute);
  std::atomic<int> good = 0;
  std::atomic<int> bad = 0;
  const auto call = [&] {
    client->Call({{"GET", "x"}}, 100,
                 [&](const RedisClient::Replies& replies) { ++(replies.ok() ? good : bad); });
  };
  call();
  asked.get_future().wait();
  for (int i = 0; i < 1024; ++i) call();
  EXPECT_EQ(bad, 0);
  EXPECT_EQ(metrics_.redis_waiting.Value(), 1024);
  call();
  EXPECT_EQ(bad, 1);
  EXPECT_EQ(failed(RedisFailure::kUnsent), 1);
  go_on.set_value();
  while (good < 1025) std::this_thread::yield();
  EXPECT_EQ(bad, 1);
  EXPECT_EQ(metrics_.redis_waiting.Value(), 0);
}

TEST_F(RedisClientTest, ACallThatWaitedTooLongEndsThoughTheThreadCannot) {
  std::promise<void> found;
  std::atomic<bool> first = true;
  const auto open = [&](const RedisConfig&, const std::string&, RedisConnection::Deadline) {
    if (first.exchange(false)) found.get_future().wait();  // as the look-up of a host's name
    return absl::UnavailableError("no such host");
  };
  RedisConfig config;
  config.timeout = milliseconds(20);
  RedisClient client(config, "", metrics_, open);
  std::atomic<int> ended = 0;
  for (int i = 0; i < 3; ++i) {
    client.Call({{"GET", "x"}}, 100, [&](const RedisClient::Replies& replies) {
      EXPECT_EQ(replies.status().code(), absl::StatusCode::kUnavailable);
      ++ended;
    });
  }
  client.Expire();
  while (ended < 3) client.Expire();
  EXPECT_EQ(metrics_.redis_waiting.Value(), 0);
  found.set_value();
}

TEST_F(RedisClientTest, EndsEveryCallWhenItGoes) {
  FakeRedis redis([](const RedisCommand&) { return ""; });
  auto client = Connect(redis.address(), milliseconds(50));
  std::atomic<int> ended = 0;
  for (int i = 0; i < 100; ++i) {
    client->Call({{"GET", "x"}}, 100, [&](const RedisClient::Replies&) { ++ended; });
  }
  client.reset();
  EXPECT_EQ(ended, 100);
}

TEST_F(RedisClientTest, NobodyListens) {
  for (const std::string& address :
       {"unix:" + temp_.File("none"), std::string("unix:/"), std::string("127.0.0.1:1"),
        std::string("[::1]:1"), std::string("host.invalid:1")}) {
    SCOPED_TRACE(address);
    RedisConfig config;
    config.address = address;
    const auto deadline = std::chrono::steady_clock::now() + kMinute;
    EXPECT_THAT(RedisConnection::Open(config, "", deadline).status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("states.redis: " + address)));
  }
}

}  // namespace
}  // namespace aft::server
