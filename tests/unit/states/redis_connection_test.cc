#include "server/states/redis_connection.h"

#include <malloc.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/config/config.h"
#include "tests/support/redis_server.h"

namespace aft::server {
namespace {

// The bytes that are allocated on the heap. They are about 0 under a sanitizer.
size_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(RedisConnectionTest, HoldsNoMemoryOfALargeReplyAfterItsCall) {
  constexpr size_t kLarge = 40'000'000;
  auto redis = std::make_unique<FakeRedis>([](const RedisCommand&) {
    return absl::StrCat("$", kLarge, "\r\n", std::string(kLarge, 'x'), "\r\n");
  });
  RedisConfig config;
  config.address = redis->address();
  config.timeout = std::chrono::minutes(1);
  const auto deadline = std::chrono::steady_clock::now() + config.timeout;
  const auto connection = RedisConnection::Open(config, "", deadline);
  ASSERT_TRUE(connection.ok()) << connection.status();
  const size_t before = HeapBytes();
  EXPECT_TRUE((*connection)->Call({{"GET", "x"}}, 2 * kLarge, deadline).ok());
  redis.reset();  // its thread may still hold the reply
  EXPECT_LT(HeapBytes(), before + kLarge / 2);
}

}  // namespace
}  // namespace aft::server
