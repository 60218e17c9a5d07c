#include "server/scheduling/delay_batcher.h"

#include <chrono>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr milliseconds kDelay{5};
constexpr milliseconds kBatchAge{1000};

// Batches of at most 4 texts and 100 tokens, under a clock that the test moves.
class DelayBatcherTest : public testing::Test {
 protected:
  BatchItem& Add(int64_t tokens, const std::string& client = "a",
                 ServiceClass service_class = ServiceClass::kNormal) {
    BatchItem& item = items_.emplace_back(tokens, client, 1, service_class);
    batcher_.Add(item, clock_.Now());
    return item;
  }

  bool Ready() const { return clock_.Now() >= batcher_.ReadyAt(); }

  std::vector<int64_t> Take() {
    std::vector<int64_t> sizes;
    for (const BatchItem* item : batcher_.Take(clock_.Now())) {
      sizes.push_back(item->batch_tokens);
    }
    return sizes;
  }

  ManualClock clock_;
  DelayBatcher batcher_{{.max_rows = 4, .max_tokens = 100, .max_delay = kDelay, .age = kBatchAge}};
  std::deque<BatchItem> items_;  // a deque, so that items keep their addresses
};

TEST_F(DelayBatcherTest, HasNothingToRunAtFirst) {
  EXPECT_EQ(batcher_.ReadyAt(), TimePoint::max());
  EXPECT_THAT(Take(), IsEmpty());
}

TEST_F(DelayBatcherTest, ALoneTextWaitsForItsDelayAndNoLonger) {
  Add(10);
  EXPECT_FALSE(Ready());
  clock_.Advance(kDelay - milliseconds(1));
  EXPECT_FALSE(Ready());
  clock_.Advance(milliseconds(1));
  EXPECT_TRUE(Ready());
  EXPECT_THAT(Take(), ElementsAre(10));
  EXPECT_FALSE(Ready());
}

TEST_F(DelayBatcherTest, TheDelayCountsFromTheFirstTextOfTheBatch) {
  const TimePoint first = clock_.Now();
  Add(10);
  clock_.Advance(milliseconds(3));
  Add(20);
  EXPECT_EQ(batcher_.ReadyAt(), first + kDelay);
  clock_.Advance(milliseconds(2));
  EXPECT_TRUE(Ready());
  EXPECT_THAT(Take(), ElementsAre(10, 20));
}

TEST_F(DelayBatcherTest, IsReadyAtOnceWhenAllRowsAreTaken) {
  for (int64_t tokens = 1; tokens <= 3; ++tokens) Add(tokens);
  EXPECT_FALSE(Ready());
  Add(4);
  EXPECT_TRUE(Ready());
  Add(5);
  EXPECT_THAT(Take(), ElementsAre(1, 2, 3, 4));
  EXPECT_FALSE(Ready());  // the fifth waits for its own delay
  clock_.Advance(kDelay);
  EXPECT_TRUE(Ready());
  EXPECT_THAT(Take(), ElementsAre(5));
}

TEST_F(DelayBatcherTest, IsReadyAtOnceWhenTheNextTextWouldNotFit) {
  Add(60);
  EXPECT_FALSE(Ready());
  Add(41);  // one token too many; never split
  EXPECT_TRUE(Ready());
  EXPECT_THAT(Take(), ElementsAre(60));
  EXPECT_FALSE(Ready());
}

TEST_F(DelayBatcherTest, IsReadyAtOnceWhenAllTokensAreTaken) {
  Add(60);
  Add(40);
  EXPECT_TRUE(Ready());
  EXPECT_THAT(Take(), ElementsAre(60, 40));
  Add(100);  // the longest text that is allowed
  EXPECT_TRUE(Ready());
  EXPECT_THAT(Take(), ElementsAre(100));
}

TEST_F(DelayBatcherTest, ARemovedTextLeavesTheBatch) {
  BatchItem& first = Add(60);
  clock_.Advance(milliseconds(2));
  Add(50);
  EXPECT_TRUE(Ready());  // full: they do not fit together
  batcher_.Remove(first);
  EXPECT_FALSE(Ready());
  EXPECT_EQ(batcher_.ReadyAt(), clock_.Now() + kDelay);  // the second one's delay counts now
  batcher_.Remove(first);                                // again is harmless
  EXPECT_EQ(batcher_.waiting(), 1);
  EXPECT_THAT(Take(), ElementsAre(50));
}

TEST_F(DelayBatcherTest, WithoutADelayNothingWaits) {
  DelayBatcher eager({.max_rows = 4, .max_tokens = 100, .max_delay = {}});
  BatchItem item(1, "a", 1, ServiceClass::kNormal);
  eager.Add(item, clock_.Now());
  EXPECT_LE(eager.ReadyAt(), clock_.Now());
}

TEST_F(DelayBatcherTest, TextsRunByClassAndByWhatTheirClientsHaveHad) {
  for (const int64_t tokens : {11, 12, 13}) Add(tokens, "a");
  Add(21, "b");
  Add(31, "c", ServiceClass::kBatch);
  Add(22, "b", ServiceClass::kInteractive);
  EXPECT_THAT(Take(), ElementsAre(22, 11, 12, 21));  // a has had 11, then 23; b 22, then 43
  EXPECT_THAT(Take(), ElementsAre(13, 31));
}

TEST_F(DelayBatcherTest, WaitingImprovesTheClassOfAText) {
  Add(90, "a", ServiceClass::kBatch);
  clock_.Advance(2 * kBatchAge);
  Add(91, "b", ServiceClass::kInteractive);
  EXPECT_THAT(Take(), ElementsAre(90));
}

TEST_F(DelayBatcherTest, TheDelayIsThatOfTheOldestTextWhicheverGoesFirst) {
  Add(10, "a", ServiceClass::kBatch);
  const TimePoint first = clock_.Now();
  clock_.Advance(milliseconds(3));
  Add(20, "b", ServiceClass::kInteractive);
  EXPECT_EQ(batcher_.ReadyAt(), first + kDelay);
  EXPECT_THAT(Take(), ElementsAre(20, 10));
}

// A text that came first may be added last, because it took longer to decode.
TEST_F(DelayBatcherTest, TheDelayIsThatOfTheOldestTextWhicheverWasAddedFirst) {
  const TimePoint first = clock_.Now();
  clock_.Advance(milliseconds(3));
  Add(10);
  batcher_.Add(items_.emplace_back(20, "a", 1, ServiceClass::kNormal), first);
  EXPECT_EQ(batcher_.ReadyAt(), first + kDelay);
}

TEST_F(DelayBatcherTest, AnySequenceOfTextsRunsInOrderWithinTheLimits) {
  constexpr unsigned kSeed = 11;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  std::vector<int64_t> added;
  std::vector<int64_t> taken;
  while (taken.size() < 2000) {
    for (auto i = random() % 7; i > 0; --i) {
      added.push_back(1 + static_cast<int64_t>(random() % 100));
      Add(added.back());
    }
    clock_.Advance(milliseconds(random() % 3));
    if (!Ready()) continue;
    const auto waiting = static_cast<size_t>(batcher_.waiting());
    const std::vector<int64_t> batch = Take();
    int64_t tokens = 0;
    for (const int64_t size : batch) tokens += size;
    ASSERT_GE(batch.size(), 1U);
    ASSERT_LE(batch.size(), 4U);
    ASSERT_LE(tokens, 100);
    taken.insert(taken.end(), batch.begin(), batch.end());
    if (batch.size() == waiting || batch.size() == 4) continue;
    ASSERT_GT(tokens + added[taken.size()], 100);  // cut only because the next one did not fit
  }
  added.resize(taken.size());
  EXPECT_EQ(taken, added);
}

}  // namespace
}  // namespace aft::server
