#include "server/call/outbox.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/catching.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "server/admission/memory_ledger.h"
#include "server/call/call_environment.h"
#include "server/config/client.h"
#include "server/config/config.h"
#include "server/engine/request.h"
#include "server/observability/metrics.h"
#include "server/observability/rate_limit.h"
#include "server/scheduling/time.h"
#include "tests/unit/call/silent_exchanges.h"

namespace aft::server {
namespace {

// An exchange whose answer takes more memory than there is.
class Unread final : public Silent {
 public:
  void Append(TokenDelta /*delta*/, uint32_t /*sequence*/) override { held_ = 2 << 20; }
  void Drop() override { held_ = 0; }
  size_t held_bytes() const override { return held_; }

 private:
  size_t held_ = 0;
};

class OutboxTest : public testing::Test {
 protected:
  // The outbox of a call with four sequences. The handle of the first one is 7.
  OutboxTest() {
    outbox.ExpectSequences(4);
    EXPECT_FALSE(outbox.Accepted(7));
    outcome.status = absl::CancelledError("");
  }

  prometheus::Registry registry;
  ServerMetrics metrics{registry, {.version = "test"}};
  MemoryLedger ledger{1 << 20, 1 << 20, metrics};
  RateLimit refusal_lines{1};
  const CallEnvironment environment = {metrics, ledger, refusal_lines, LimitsConfig()};
  Silent exchange;
  Outbox outbox{environment, exchange};
  Outcome outcome;
};

// Each cancellation is a message for every sequence, and every cancelled sequence ends in turn.
TEST_F(OutboxTest, OnlyTheFirstErrorCancelsTheOtherSequences) {
  std::vector<RequestHandle> cancelled;
  for (uint32_t i = 0; i < 4; ++i) {
    const std::optional<RequestHandle> others =
        outbox.EndSequence(outcome, i, /*stored=*/std::nullopt).others;
    if (others.has_value()) cancelled.push_back(*others);
  }
  EXPECT_THAT(cancelled, testing::ElementsAre(7U));
}

// The call cancels all of its sequences, so none of them ends because another one has failed.
TEST_F(OutboxTest, ASequenceThatItsClientCancelledCancelsNoOther) {
  EXPECT_EQ(outbox.Cancel(absl::CancelledError("gone")), RequestHandle{7});
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(outbox.EndSequence(outcome, i, /*stored=*/std::nullopt).others, std::nullopt);
  }
}

// The end of such a call is no fault of its client, and counts as a refusal.
TEST_F(OutboxTest, AnAnswerForWhichThereIsNoMemoryIsCounted) {
  Unread unread;
  Outbox full(environment, unread);
  full.Open(MemoryLedger::Charge(ledger, Client()));
  EXPECT_TRUE(IsNoMemory(full.Offer(TokenDelta(), 0)));
  EXPECT_EQ(full.Offer(TokenDelta(), 1), absl::OkStatus());  // the call is ending already
  EXPECT_EQ(metrics.memory_refusals.Value(), 1);
}

// Which thread notices first that the deadline has come, must not make a difference.
TEST_F(OutboxTest, ACancelAtTheDeadlineCountsAsTheDeadline) {
  outbox.EndCall(outcome);
  const TimePoint now = std::chrono::steady_clock::now();
  outbox.Cancel(absl::CancelledError("gone"));
  const auto arrival = now - std::chrono::hours(1);
  EXPECT_EQ(outbox.WhyCancelled(arrival, now), Ending::kDeadline);
  EXPECT_EQ(outbox.FinalStatus(arrival, now).code(), absl::StatusCode::kDeadlineExceeded);
  for (const TimePoint later : {now + std::chrono::hours(1000), TimePoint::max()}) {
    EXPECT_EQ(outbox.WhyCancelled(arrival, later), Ending::kCancelled);
    EXPECT_EQ(outbox.FinalStatus(arrival, later).code(), absl::StatusCode::kCancelled);
  }
}

// The requests that a failed call ends are ABORTED, which is not the status of the call.
TEST_F(OutboxTest, ACallThatIsCancelledEndsWithTheReasonAndNotWithAborted) {
  EXPECT_EQ(outbox.WhyCancelled({}, TimePoint::max()), Ending::kError);  // a sequence has failed
  outbox.Cancel(absl::InternalError("a defect"));
  EXPECT_EQ(outbox.WhyCancelled({}, TimePoint::max()), Ending::kError);
  outcome.status = absl::AbortedError("");
  outbox.EndCall(outcome);
  EXPECT_EQ(outbox.FinalStatus({}, TimePoint::max()).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace aft::server
