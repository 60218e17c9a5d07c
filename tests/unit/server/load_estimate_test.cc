#include "server/engine/load_estimate.h"

#include <chrono>

#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"

namespace aft::server {
namespace {

using std::chrono::seconds;

constexpr auto kNormal = ServiceClass::kNormal;
constexpr auto kBatch = ServiceClass::kBatch;

TEST(LoadEstimateTest, KnowsNothingAtFirst) {
  const LoadEstimate estimate;
  EXPECT_EQ(estimate.UntilRead(kNormal, 100, 1'000'000), Duration(0));
}

TEST(LoadEstimateTest, CountsOnHalfOfWhatATokenTakes) {
  LoadEstimate estimate;
  estimate.SetTokenSeconds(0.5);
  EXPECT_EQ(estimate.UntilRead(kNormal, 0, 40), seconds(10));
}

TEST(LoadEstimateTest, MeasuresTurnsOfAClassWhileItsRequestsWait) {
  ManualClock clock;
  LoadEstimate estimate;
  const auto turn = [&](ServiceClass service_class, bool waiting) {
    estimate.ObserveTurn(service_class, waiting, clock.Now());
  };
  turn(kNormal, true);
  clock.Advance(seconds(6));
  turn(kBatch, true);
  EXPECT_EQ(estimate.UntilRead(kNormal, 1, 0), Duration(0));
  turn(kNormal, false);
  EXPECT_EQ(estimate.UntilRead(kNormal, 1, 0), seconds(3));
  EXPECT_EQ(estimate.UntilRead(kNormal, 3, 0), seconds(9));
  EXPECT_EQ(estimate.UntilRead(kNormal, 0, 0), Duration(0));
  EXPECT_EQ(estimate.UntilRead(kBatch, 3, 0), Duration(0));
  clock.Advance(seconds(100));  // nobody waits: no turn
  turn(kNormal, true);
  EXPECT_EQ(estimate.UntilRead(kNormal, 1, 0), seconds(3));
  clock.Advance(seconds(16));
  turn(kNormal, true);
  EXPECT_EQ(estimate.UntilRead(kNormal, 2, 0), seconds(7));  // of 6 s and a tenth of 10 more
}

}  // namespace
}  // namespace aft::server
