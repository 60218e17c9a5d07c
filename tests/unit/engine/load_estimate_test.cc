#include "server/engine/load_estimate.h"

#include <chrono>

#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/unit/scheduling/named_sequence.h"

namespace aft::server {
namespace {

using std::chrono::seconds;

TEST(LoadEstimateTest, KnowsNothingAtFirst) {
  const ManualClock clock;
  const LoadEstimate estimate;
  EXPECT_EQ(estimate.UntilRead(kNormal, 100, 1'000'000, clock.Now()), Duration(0));
}

TEST(LoadEstimateTest, AssumesHalfOfTheMeasuredTimeOfAToken) {
  const ManualClock clock;
  LoadEstimate estimate;
  estimate.SetTokenSeconds(0.5, clock.Now());
  EXPECT_EQ(estimate.UntilRead(kNormal, 0, 40, clock.Now()), seconds(10));
}

TEST(LoadEstimateTest, AMeasurementLosesItsWeightWithTime) {
  ManualClock clock;
  LoadEstimate estimate;
  estimate.SetTokenSeconds(0.5, clock.Now());
  clock.Advance(seconds(10));
  EXPECT_EQ(estimate.UntilRead(kNormal, 0, 40, clock.Now()), seconds(5));
  clock.Advance(seconds(200));
  EXPECT_LT(estimate.UntilRead(kNormal, 0, 1'000'000, clock.Now()), seconds(1));
  estimate.SetTokenSeconds(0.5, clock.Now());
  EXPECT_EQ(estimate.UntilRead(kNormal, 0, 40, clock.Now()), seconds(10));
}

TEST(LoadEstimateTest, ATurnThatStallsCountsForNoMoreThanSomeOthers) {
  ManualClock clock;
  LoadEstimate estimate;
  estimate.ObserveTurn(kNormal, true, clock.Now());
  for (const int turn : {1, 1000}) {
    clock.Advance(seconds(turn));
    estimate.ObserveTurn(kNormal, true, clock.Now());
  }
  EXPECT_LT(estimate.UntilRead(kNormal, 2, 0, clock.Now()), seconds(2));
}

TEST(LoadEstimateTest, MeasuresTurnsOfAClassWhileItsRequestsWait) {
  ManualClock clock;
  LoadEstimate estimate;
  const auto turn = [&](ServiceClass service_class, bool waiting) {
    estimate.ObserveTurn(service_class, waiting, clock.Now());
  };
  const auto until_read = [&](ServiceClass service_class, int32_t ahead, int64_t tokens) {
    return estimate.UntilRead(service_class, ahead, tokens, clock.Now());
  };
  turn(kNormal, true);
  clock.Advance(seconds(6));
  turn(kBatch, true);
  EXPECT_EQ(until_read(kNormal, 1, 0), Duration(0));
  turn(kNormal, false);
  EXPECT_EQ(until_read(kNormal, 1, 0), seconds(3));
  EXPECT_EQ(until_read(kNormal, 3, 0), seconds(9));
  EXPECT_EQ(until_read(kNormal, 0, 0), Duration(0));
  EXPECT_EQ(until_read(kBatch, 3, 0), Duration(0));
  clock.Advance(seconds(10));  // no request waits: this is no turn, and older ones count half
  turn(kNormal, true);
  EXPECT_EQ(until_read(kNormal, 2, 0), seconds(3));
  clock.Advance(seconds(16));
  turn(kNormal, true);
  EXPECT_EQ(until_read(kNormal, 2, 0), seconds(7));  // 6 s a turn, and a tenth of the 10 s more
}

}  // namespace
}  // namespace aft::server
