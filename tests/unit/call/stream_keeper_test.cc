#include "server/call/stream_keeper.h"

#include <sched.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "tests/support/kept_bytes.h"
#include "tests/support/redis_server.h"
#include "tests/support/states.h"
#include "tests/support/temp_files.h"
#include "tests/support/thread_name.h"

namespace aft::server {
namespace {

class StreamKeeperTest : public testing::Test {
 protected:
  StreamKeeperTest() {
    access_ = OpenStates(StatesConfig(), metrics_);
    pool_.emplace();
  }

  std::shared_ptr<StreamKeeper> Keeper(SequenceState text, SequenceState start,
                                       const std::string& old_id = "") {
    return std::make_shared<StreamKeeper>(
        StreamKeeper::Environment{*access_, *pool_, metrics_}, client_, "austen", std::move(text),
        std::make_shared<const SequenceState>(std::move(start)), old_id, CallIds());
  }

  // Returns when the keepers have done all their tasks.
  void Finish() {
    pool_.reset();
    pool_.emplace();
  }

  // A stream that has broken, and the one that resumes it. Both have stored their start.
  std::pair<std::shared_ptr<StreamKeeper>, std::shared_ptr<StreamKeeper>> Resumed() {
    const auto old = Keeper(StateAfter(1, 0), StateAfter(10, 0));
    old->KeepStart();
    Finish();
    const auto keeper = Keeper(StateAfter(11, 0), StateAfter(10, 0), old->id());
    keeper->KeepStart();
    Finish();
    return {old, keeper};
  }
  // The number of tokens of the kept state, or -1 without a kept state.
  int64_t Kept(const StreamKeeper& keeper) {
    int64_t tokens = -1;
    access_->FindResumePoint(
        *client_, keeper.id(),
        [&](const absl::StatusOr<std::shared_ptr<const SequenceState>>& state) {
          if (state.ok()) tokens = (*state)->tokens;
        });
    return tokens;
  }

  // A task that holds one of the two threads of the pool.
  struct Blocker {
    std::promise<void> begun;
    std::promise<void> released;
  };
  void Block(Blocker& blocker) {
    pool_->Add(*client_, 0, [&blocker] {
      blocker.begun.set_value();
      blocker.released.get_future().wait();
    });
  }

  prometheus::Registry registry_;
  StateMetrics metrics_{registry_};
  std::unique_ptr<StateAccess> access_;
  std::optional<DecodePool> pool_;
  const std::shared_ptr<const Client> client_ = std::make_shared<const Client>();
};

// A thread first makes the state of the start and then writes it. Between the two steps it may lose
// its processor. On a single processor this happens in every other round.
TEST_F(StreamKeeperTest, TheStartNeverTakesThePlaceOfALaterState) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  Finish();  // makes new threads for the pool, which run only on this processor
  for (int round = 0; round < 20; ++round) {
    const auto keeper = Keeper(StateAfter(11, 0), StateAfter(10, 30'000'000));
    keeper->KeepStart();
    std::promise<void> done;
    keeper->HandOver({.state = KeptBytes("s"), .outputs = {}}, /*seal=*/false,
                     [&done](const absl::StatusOr<std::string>& handed) {
                       EXPECT_TRUE(handed.ok()) << handed.status();
                       done.set_value();
                     });
    done.get_future().wait();
    Finish();
    EXPECT_EQ(Kept(*keeper), 11) << round;
    keeper->Forget(/*old=*/false);
  }
  EXPECT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST_F(StreamKeeperTest, TheOldStateGoesWhenALaterOneIsWritten) {
  StatesConfig config;
  config.max_bytes = 100'000;
  access_ = OpenStates(config, metrics_);
  const auto [old, keeper] = Resumed();
  EXPECT_EQ(Kept(*keeper), 10);
  EXPECT_EQ(Kept(*old), 10);
  for (const bool fits : {false, true}) {
    keeper->HandOver({.state = KeptBytes(std::string(fits ? 1 : 200'000, 's')), .outputs = {}},
                     /*seal=*/false, [fits](const absl::StatusOr<std::string>& handed) {
                       EXPECT_EQ(handed.ok(), fits) << handed.status();
                     });
    Finish();
    EXPECT_EQ(Kept(*old), fits ? -1 : 10);
  }
}

TEST_F(StreamKeeperTest, AStateThatCouldNotBeReadIsAnError) {
  for (const bool seal : {false, true}) {
    absl::Status handed;
    const auto keeper = Keeper(StateAfter(11, 0), StateAfter(10, 0));
    keeper->HandOver({}, seal, [&handed](const absl::StatusOr<std::string>& sealed) {
      handed = sealed.status();
    });
    Finish();
    EXPECT_EQ(handed, absl::InternalError("the state could not be read"));
  }
}

// The callback of a failed write may be on the thread that talks to Redis for all clients.
TEST_F(StreamKeeperTest, ALastStateThatCannotBeWrittenIsSealedOnTheDecodePool) {
  FakeRedis redis([](const RedisCommand&) { return "-OOM command not allowed\r\n"; });
  const TempFolder folder;
  WriteBytes(folder.File("key"), std::string(32, 'k'));
  StatesConfig config;
  config.max_bytes = 100'000;
  config.key_files = {folder.File("key")};
  config.redis.address = redis.address();
  config.redis.timeout = std::chrono::minutes(1);
  access_ = OpenStates(config, metrics_);
  const auto keeper = Keeper(StateAfter(11, 0), StateAfter(10, 0));
  std::promise<std::pair<absl::StatusOr<std::string>, std::string>> handed_over;
  keeper->HandOver({.state = KeptBytes("s"), .outputs = {}}, /*seal=*/false,
                   [&](const absl::StatusOr<std::string>& handed) {
                     handed_over.set_value({handed, ThreadName()});
                   });
  const auto [sealed, thread] = handed_over.get_future().get();
  EXPECT_EQ(thread, "aft-decode");
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  const absl::StatusOr<SequenceState> state = access_->sealer().Open(*sealed);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->tokens, 11);
  EXPECT_EQ(state->snapshot, "s");
}

// The resume point before the newest one is written.
TEST_F(StreamKeeperTest, TheOldStateGoesWithTheSecondResumePoint) {
  const auto [old, keeper] = Resumed();
  for (const int64_t left : {10, -1}) {
    keeper->OnResumePoint({.state = KeptBytes("s"), .outputs = {}});
    Finish();
    EXPECT_EQ(Kept(*old), left);
  }
  EXPECT_EQ(Kept(*keeper), 11);
}

// A server that ends frees the pool, and then the states, which complete the writes that wait.
TEST_F(StreamKeeperTest, AWriteThatOutlivesThePoolRemovesTheOldState) {
  const TempFolder folder;
  WriteBytes(folder.File("key"), std::string(32, 'k'));
  StatesConfig config;
  config.max_bytes = 100'000;
  config.key_files = {folder.File("key")};
  config.folder = folder.path();
  access_ = OpenStates(config, metrics_);
  const auto [old, keeper] = Resumed();
  std::promise<void> begun;
  std::promise<void> release;
  access_->PutResumePoint(*client_, "austen", StateAccess::NewResumeId(), StateAfter(1, 0),
                          [&](const absl::Status& /*put*/) {
                            begun.set_value();
                            release.get_future().wait();
                          });
  begun.get_future().wait();
  for (int i = 0; i < 2; ++i) keeper->OnResumePoint({.state = KeptBytes("s"), .outputs = {}});
  pool_.reset();
  release.set_value();
  access_.reset();
  access_ = OpenStates(config, metrics_);
  EXPECT_EQ(Kept(*old), -1);
  EXPECT_EQ(Kept(*keeper), 11);
}

TEST_F(StreamKeeperTest, AResumePointThatWaitsBehindTheStartKeepsItBusy) {
  const auto keeper = Keeper(StateAfter(11, 0), StateAfter(10, 0));
  Blocker one;
  Blocker other;
  Blocker after_start;
  Block(one);
  Block(other);
  one.begun.get_future().wait();
  other.begun.get_future().wait();
  keeper->KeepStart();
  Block(after_start);
  keeper->OnResumePoint({.state = KeptBytes("s"), .outputs = {}});
  other.released.set_value();
  after_start.begun.get_future().wait();  // the same thread has written the start before
  EXPECT_EQ(Kept(*keeper), 10);
  EXPECT_FALSE(keeper->Ready());
  after_start.released.set_value();
  one.released.set_value();
  Finish();
  EXPECT_TRUE(keeper->Ready());
}

// Only what a client asks for counts as refused.
TEST_F(StreamKeeperTest, ARemovalOfAStateThatWasNeverWrittenRefusesNothing) {
  StatesConfig config;
  config.max_bytes = 1000;
  access_ = OpenStates(config, metrics_);
  const auto keeper = Keeper(StateAfter(11, 0), StateAfter(10, 200'000));
  keeper->KeepStart();
  Finish();
  keeper->Forget(/*old=*/false);
  Finish();
  EXPECT_EQ(metrics_.refused(StateRefusal::kUnknown).Value(), 0);
}

// To free a state takes long, and a thread that sends for all clients calls Forget.
TEST_F(StreamKeeperTest, ForgottenStatesAreRemovedOnTheDecodePool) {
  const auto [old, keeper] = Resumed();
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future();
  for (int i = 0; i < 8; ++i) {  // more than the pool has threads
    pool_->Add(*client_, 0, [released] { released.wait(); });
  }
  keeper->Forget(/*old=*/true);
  EXPECT_EQ(Kept(*old), 10);
  EXPECT_EQ(Kept(*keeper), 10);
  release.set_value();
  Finish();
  EXPECT_EQ(Kept(*old), -1);
  EXPECT_EQ(Kept(*keeper), -1);
}

}  // namespace
}  // namespace aft::server
