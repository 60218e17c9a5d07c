#include "server/call/decode_pool.h"

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/no_more_threads.h"
#include "tests/support/step_gate.h"

namespace aft::server {
namespace {

// Blocks the task that enters it, until Resume is called.
struct Gate : StepGate {
  Gate() { Hold(); }
  using StepGate::Enter;
};

class DecodePoolTest : public testing::Test {
 protected:
  // Blocks both threads of the pool, so that all later tasks wait.
  DecodePoolTest() {
    pool_->Add(Client{.name = "held"}, 1, [this] { one_.Enter(); });
    pool_->Add(Client{.name = "held"}, 1, [this] { other_.Enter(); });
    one_.WaitUntilBlocked();
    other_.WaitUntilBlocked();
  }
  ~DecodePoolTest() override {
    one_.Resume();
    other_.Resume();
  }

  void Add(const Client& client, size_t bytes, const std::string& name, size_t answer_bytes = 0) {
    pool_->AddAnswer(client, bytes, [this, name, answer_bytes] {
      MutexLock lock(mutex_);
      ran_.push_back(name);
      if (ran_.size() == 6) six_.NotifyAll();
      return answer_bytes;
    });
  }
  // Resumes one thread, so that the order is defined, and returns the names of the tasks in the
  // order in which they ran. REQUIRES: six tasks were added.
  std::vector<std::string> Run() {
    one_.Resume();
    MutexLock lock(mutex_);
    while (ran_.size() < 6) six_.Wait(mutex_);
    return ran_;
  }

  Gate one_;
  Gate other_;
  Mutex mutex_;
  CondVar six_;
  std::vector<std::string> ran_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<DecodePool> pool_ = std::make_unique<DecodePool>();
};

TEST_F(DecodePoolTest, AClientWithLongMessagesWaitsForTheOthers) {
  const Client a{.name = "a"};
  const Client b{.name = "b"};
  for (const char* name : {"a1", "a2", "a3", "a4"}) Add(a, 1000, name);
  for (const char* name : {"b1", "b2"}) Add(b, 10, name);
  EXPECT_THAT(Run(), testing::ElementsAre("a1", "b1", "b2", "a2", "a3", "a4"));
}

TEST_F(DecodePoolTest, AClientsWeightCounts) {
  const Client a{.name = "a"};
  const Client b{.name = "b", .weight = 2};
  for (const char* name : {"a1", "a2", "a3"}) Add(a, 10, name);
  for (const char* name : {"b1", "b2", "b3"}) Add(b, 15, name);
  EXPECT_THAT(Run(), testing::ElementsAre("a1", "b1", "b2", "a2", "b3", "a3"));
}

TEST_F(DecodePoolTest, ABlockedThreadDoesNotDelayOtherTasks) {
  std::atomic<int> ran = 0;
  other_.Resume();  // the first thread stays blocked
  for (int i = 0; i < 10; ++i) pool_->Add(Client{.name = "a"}, 1, [&ran] { ++ran; });
  while (ran < 10) std::this_thread::yield();
}

TEST_F(DecodePoolTest, ATaskThatRunsOutOfMemoryEndsNoOtherTask) {
  for (int i = 0; i < 3; ++i) pool_->Add(Client{.name = "a"}, 1, [] { throw std::bad_alloc(); });
  for (const char* name : {"1", "2", "3", "4", "5", "6"}) Add(Client{.name = "a"}, 1, name);
  EXPECT_THAT(Run(), testing::ElementsAre("1", "2", "3", "4", "5", "6"));
}

// The answers of Tokenize and Detokenize may be many times as long as their messages.
TEST_F(DecodePoolTest, AClientWithLongAnswersWaitsForTheOthers) {
  const Client a{.name = "a"};
  const Client b{.name = "b"};
  for (const char* name : {"a1", "a2", "a3"}) Add(a, 10, name, 1000);
  for (const char* name : {"b1", "b2", "b3"}) Add(b, 100, name);
  EXPECT_THAT(Run(), testing::ElementsAre("a1", "b1", "b2", "b3", "a2", "a3"));
}

TEST_F(DecodePoolTest, TheLongMessagesOfOneClientLeaveAThreadToOthers) {
  Gate slow;
  const Client a{.name = "a"};
  for (int i = 0; i < 3; ++i) {
    pool_->Add(a, DecodePool::kLongMessage, [&slow] { slow.Enter(); });
  }
  one_.Resume();
  other_.Resume();
  slow.WaitUntilBlocked();
  for (const char* name : {"1", "2", "3", "4", "5", "6"}) Add(Client{.name = "b"}, 1, name);
  EXPECT_EQ(Run().size(), 6U);
  slow.Resume();
  pool_.reset();
}

TEST_F(DecodePoolTest, DestructionRunsTheLongMessagesOfOneClient) {
  for (const char* name : {"1", "2", "3", "4", "5", "6"}) {
    Add(Client{.name = "a"}, DecodePool::kLongMessage, name);
  }
  one_.Resume();
  other_.Resume();
  pool_.reset();
  MutexLock lock(mutex_);
  EXPECT_EQ(ran_.size(), 6U);
}

TEST_F(DecodePoolTest, DestructionRunsAllWaitingTasks) {
  for (const char* name : {"1", "2", "3", "4", "5", "6"}) Add(Client{.name = "a"}, 1, name);
  one_.Resume();
  other_.Resume();
  pool_.reset();
  MutexLock lock(mutex_);
  EXPECT_EQ(ran_.size(), 6U);
}

// The pool must not hold its lock when it destroys a task, or this would deadlock.
TEST_F(DecodePoolTest, TheDestructionOfATaskMayAddAnotherTask) {
  for (const char* name : {"1", "2", "3", "4", "5"}) Add(Client{.name = "a"}, 1, name);
  std::shared_ptr<void> last(nullptr, [this](void*) { Add(Client{.name = "a"}, 1, "6"); });
  pool_->Add(Client{.name = "a"}, 1, [held = std::move(last)] {});
  EXPECT_THAT(Run(), testing::Contains("6"));
}

TEST(DecodePoolStartTest, EndsTheThreadThatItHasWhenAnotherCannotStart) {
  const NoMoreThreads no_more_threads(/*left=*/1);
  EXPECT_THROW(DecodePool(), std::system_error);
}

}  // namespace
}  // namespace aft::server
