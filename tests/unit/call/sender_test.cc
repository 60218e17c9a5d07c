#include "server/call/sender.h"

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/catching.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;

class TestSource final : public Sender::Source {
 public:
  explicit TestSource(std::function<void()> send) : send_(std::move(send)) {}

  void Send() override { send_(); }
  void Fail(const absl::Status& why) override { failures.push_back(why); }

  std::vector<absl::Status> failures;

 private:
  const std::function<void()> send_;
};

std::shared_ptr<TestSource> Source(std::function<void()> send) {
  return std::make_shared<TestSource>(std::move(send));
}

TEST(SenderTest, AnotherThreadSendsInOrderAndAllBeforeTheEnd) {
  std::vector<int> sent;
  std::thread::id thread;
  {
    Sender sender;
    for (int i = 0; i < 3; ++i) {
      sender.Post(Source([&, i] {
        sent.push_back(i);
        thread = std::this_thread::get_id();
      }));
    }
  }
  EXPECT_THAT(sent, ElementsAre(0, 1, 2));
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(SenderTest, SeveralThreadsPostWhileItSends) {
  constexpr int kThreads = 4;
  constexpr int kPosts = 1000;
  std::atomic<int> sent{0};
  {
    Sender sender;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        for (int post = 0; post < kPosts; ++post) sender.Post(Source([&] { ++sent; }));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(sent, kThreads * kPosts);
}

TEST(SenderTest, ASourceIsKeptUntilItHasSent) {
  std::weak_ptr<TestSource> kept;
  {
    Sender sender;
    std::atomic<bool> goes_on{false};
    std::shared_ptr<TestSource> source = Source([&] {
      while (!goes_on) std::this_thread::yield();
    });
    kept = source;
    sender.Post(std::move(source));
    EXPECT_FALSE(kept.expired());
    goes_on = true;
  }
  EXPECT_TRUE(kept.expired());
}

TEST(SenderTest, ASourceWithoutMemoryFailsAndSendsAgainAndOthersGoOn) {
  int tries = 0;
  bool sent = false;
  const auto poor = Source([&] {
    if (++tries <= 2) throw std::bad_alloc();
  });
  {
    Sender sender;
    sender.Post(poor);
    sender.Post(Source([&] { sent = true; }));
  }
  EXPECT_EQ(tries, 3);
  EXPECT_THAT(poor->failures, ElementsAre(OutOfMemory(), OutOfMemory()));
  EXPECT_TRUE(sent);
}

}  // namespace
}  // namespace aft::server
