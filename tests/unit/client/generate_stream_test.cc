// Tests pauses and cancellations of generations that no thread waits for. The contract
// (contract/scenario.proto) tests all other properties of these generations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "client/lib/aft_client.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"

namespace aft::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Keeps the events, and answers each one with `next`.
class Recorder : public GenerateListener {
 public:
  explicit Recorder(Next next = {}) : next_(next) {}

  Next OnEvent(const v1::GenerateResponse& event) override {
    MutexLock lock(mutex_);
    EXPECT_FALSE(status_.has_value());
    events_.push_back(event.has_started() ? "started"
                      : event.has_delta() ? event.delta().text()
                                          : "finished");
    changed_.NotifyAll();
    return next_;
  }
  void OnEnd(const absl::Status& status) override {
    MutexLock lock(mutex_);
    EXPECT_FALSE(status_.has_value());
    status_ = status;
    changed_.NotifyAll();
  }

  void WaitForEvents(size_t n) {
    MutexLock lock(mutex_);
    while (events_.size() < n) changed_.Wait(mutex_);
  }
  absl::Status Wait() {
    MutexLock lock(mutex_);
    while (!status_) changed_.Wait(mutex_);
    return *status_;
  }
  std::vector<std::string> events() {
    MutexLock lock(mutex_);
    return events_;
  }

 private:
  const Next next_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
};

class GenerateStreamTest : public testing::Test {
 protected:
  absl::Status Start(Recorder& recorder, const CallOptions& call = {}) {
    v1::GenerateRequest request;
    request.set_text("hello");
    return client_->StartGenerate(request, recorder, call);
  }
  absl::Status Run(Script script, Recorder& recorder, const CallOptions& call = {}) {
    server_.SetScript(std::move(script));
    if (const absl::Status status = Start(recorder, call); !status.ok()) return status;
    return recorder.Wait();
  }

  FakeServer server_;
  std::unique_ptr<Client> client_ = *Client::Create({.address = server_.address()});
};

TEST_F(GenerateStreamTest, AShortPauseLosesNothing) {
  Recorder recorder({.pause = std::chrono::milliseconds(1)});
  EXPECT_TRUE(Run(TextScript({"a", "b", "c"}), recorder).ok());
  EXPECT_THAT(recorder.events(), ElementsAre("started", "a", "b", "c", "finished"));
}

TEST_F(GenerateStreamTest, ACancellationEndsAPauseInWhichNothingIsRead) {
  server_.SetScript(TextScript({"a", "b"}));
  CancelToken cancel;
  Recorder recorder({.pause = std::chrono::hours(1)});
  ASSERT_TRUE(Start(recorder, {.cancel = &cancel}).ok());
  recorder.WaitForEvents(1);
  Recorder other;  // ends in the meantime on the same connection
  ASSERT_TRUE(Start(other).ok());
  EXPECT_TRUE(other.Wait().ok());
  cancel.Cancel();
  const absl::Status status = recorder.Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(GetErrorDetails(status).origin, ErrorOrigin::kCaller);
  EXPECT_THAT(recorder.events(), ElementsAre("started"));
}

TEST_F(GenerateStreamTest, ATokenCancelsRunningStreamsAndLaterOnes) {
  server_.SetScript(EndlessScript());
  CancelToken cancel;
  Recorder running, late;
  ASSERT_TRUE(Start(running, {.cancel = &cancel}).ok());
  running.WaitForEvents(2);
  cancel.Cancel();
  EXPECT_EQ(GetErrorDetails(running.Wait()).origin, ErrorOrigin::kCaller);
  ASSERT_TRUE(Start(late, {.cancel = &cancel}).ok());
  EXPECT_EQ(GetErrorDetails(late.Wait()).origin, ErrorOrigin::kCaller);
  EXPECT_THAT(late.events(), ElementsAre());
}

TEST_F(GenerateStreamTest, AnInvalidRequestIdIsAnErrorAtOnce) {
  Recorder never;
  EXPECT_THAT(Start(never, {.request_id = "a b"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("request id")));
  EXPECT_THAT(never.events(), ElementsAre());
}

}  // namespace
}  // namespace aft::client
