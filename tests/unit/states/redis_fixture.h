#pragma once

#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "server/states/redis_client.h"
#include "server/states/redis_connection.h"
#include "server/states/redis_states.h"
#include "tests/support/redis_server.h"
#include "tests/support/short_memory.h"
#include "tests/support/states.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {

// States in Redis, for one server or several. The calls wait for their answers.
class RedisTest : public testing::Test {
 protected:
  // A server that keeps its states in Redis.
  struct Replica {
    prometheus::Registry registry;
    StateMetrics metrics{registry};
    std::unique_ptr<RedisStates> states;
  };

  RedisTest() : sealer_(SealerOf('k')) {
    config_.max_bytes = 10'000'000;
    config_.redis.timeout = std::chrono::minutes(1);
  }

  StateSealer SealerOf(char key) {
    WriteBytes(temp_.File("key"), std::string(32, key));
    auto sealer = StateSealer::Create({temp_.File("key")});
    EXPECT_TRUE(sealer.ok()) << sealer.status();
    return *std::move(sealer);
  }

  std::unique_ptr<Replica> Open(const StateSealer& sealer) {
    auto replica = std::make_unique<Replica>();
    auto states = RedisStates::Create(
        config_, sealer, replica->metrics,
        [this](const Client&, size_t, const std::function<void()>& task) {
          const ShortMemory short_memory(executor_memory_);
          task();
        },
        [this] { return std::chrono::system_clock::now() + ahead_; });
    EXPECT_TRUE(states.ok()) << states.status();
    replica->states = *std::move(states);
    return replica;
  }
  std::unique_ptr<Replica> Open() { return Open(sealer_); }

  static StateFolder::File File(const std::string& owner, const std::string& id,
                                int64_t tokens = 12, size_t bytes = 5000,
                                std::chrono::milliseconds ttl = std::chrono::hours(1)) {
    SequenceState state;
    state.model = 7;
    state.tokens = tokens;
    state.outputs = 3;
    state.history = 99;
    state.pending = 5;
    state.had = {{.id = 4, .sampled = 2}};
    state.snapshot = std::string("s\r\n\0s", 5) + std::string(bytes, 's');
    return {.id = id,
            .client = owner,
            .owner = owner,
            .model = "austen",
            .ttl = ttl,
            .state = std::make_shared<const SequenceState>(std::move(state))};
  }
  static Client ClientOf(const std::string& name) {
    Client client;
    client.name = name;
    return client;
  }
  // An id of 32 such digits.
  static std::string Id(char digit) { return std::string(32, digit); }

  static absl::StatusOr<StoredState> Put(Replica& replica, StateFolder::File file) {
    return Await<absl::StatusOr<StoredState>>(
        [&](const auto& done) { replica.states->Put(std::move(file), {}, done); });
  }
  static absl::StatusOr<StoredState> Find(Replica& replica, const std::string& owner,
                                          const std::string& id) {
    return Await<absl::StatusOr<StoredState>>(
        [&](const auto& done) { replica.states->Find(ClientOf(owner), owner, id, done); });
  }
  static absl::StatusOr<StoredState> Describe(Replica& replica, const std::string& owner,
                                              const std::string& id) {
    return Await<absl::StatusOr<StoredState>>(
        [&](const auto& done) { replica.states->Describe(ClientOf(owner), owner, id, done); });
  }
  static absl::StatusOr<std::vector<std::string>> List(Replica& replica, const std::string& owner,
                                                       const std::string& after = "",
                                                       size_t most = 100) {
    const auto states = Await<absl::StatusOr<std::vector<StoredState>>>(
        [&](const auto& done) { replica.states->List(ClientOf(owner), owner, after, most, done); });
    if (!states.ok()) return states.status();
    std::vector<std::string> ids;
    for (const StoredState& stored : *states) ids.push_back(stored.id);
    return ids;
  }
  static absl::Status Remove(Replica& replica, const std::string& owner, const std::string& id) {
    return Await<absl::Status>(
        [&](const auto& done) { replica.states->Remove(ClientOf(owner), owner, id, done); });
  }

  // Waits, because a state leaves memory only at the very end of a call.
  static void WaitForBytes(const Replica& replica, int64_t bytes) {
    while (replica.metrics.bytes.Value() != static_cast<double>(bytes)) std::this_thread::yield();
  }
  static void WaitUntilUp(const StateMetrics& metrics) {
    while (metrics.redis_up.Value() != 1) std::this_thread::yield();
  }

  // A client of Redis that no states use.
  std::unique_ptr<RedisClient> Connect(
      const std::string& address, std::chrono::milliseconds timeout,
      RedisConnection::Clock clock = std::chrono::steady_clock::now) {
    RedisConfig config;
    config.address = address;
    config.timeout = timeout;
    return std::make_unique<RedisClient>(config, metrics_, RedisConnection::Open, std::move(clock));
  }

  prometheus::Registry registry_;
  StateMetrics metrics_{registry_};  // the metrics of such clients
  TempFolder temp_;
  StatesConfig config_;
  StateSealer sealer_;
  std::chrono::milliseconds ahead_{};  // how far servers' clocks are ahead
  size_t executor_memory_ = std::numeric_limits<size_t>::max();  // the limit of ShortMemory
};

// A server with states in a Redis of its own.
class OneRedisTest : public RedisTest {
 protected:
  OneRedisTest() {
    config_.redis.address = redis_.address();
    replica_ = Open();
  }

  // The bytes that Redis counts for a client.
  int64_t BytesOf(const std::string& client) const {
    return std::atoll(redis_.Do({"GET", "aft:b:" + client}).text.c_str());
  }

  RedisServer redis_;
  std::unique_ptr<Replica> replica_;
};

}  // namespace aft::server
