#include "base/progress.h"

#include <chrono>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

namespace aft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ProgressTest : public testing::Test {
 protected:
  using Shown = std::vector<std::optional<int>>;

  void AddAfter(Progress::Clock::duration time, int64_t amount) {
    now_ += time;
    progress_.Add(amount);
  }

  Progress::Clock::time_point now_{std::chrono::hours(1)};
  Shown shown_;
  Progress progress_{seconds(5), [this](std::optional<int> percent) { shown_.push_back(percent); },
                     [this] { return now_; }};
};

TEST_F(ProgressTest, ShowsAPercentageAtMostOncePerPeriod) {
  progress_.Begin(1000);
  AddAfter(milliseconds(4999), 100);
  EXPECT_EQ(shown_, Shown());
  AddAfter(milliseconds(1), 299);
  EXPECT_EQ(shown_, Shown({39})) << "39.9 % is not yet 40 %";
  AddAfter(milliseconds(4999), 1);
  AddAfter(seconds(60), 500);
  AddAfter(milliseconds(4999), 0);
  EXPECT_EQ(shown_, Shown({39, 90}));
  AddAfter(seconds(5), 200);
  progress_.End();
  progress_.End();
  EXPECT_EQ(shown_, Shown({39, 90, 100, std::nullopt}));
}

TEST_F(ProgressTest, AShortTaskShowsNothing) {
  progress_.Begin(10);
  AddAfter(milliseconds(4999), 10);
  progress_.End();
  AddAfter(seconds(9), 10);  // belongs to no task
  EXPECT_EQ(shown_, Shown());
}

TEST_F(ProgressTest, EachTaskBeginsAtZeroWithAPeriodOfItsOwn) {
  progress_.Begin(4);
  AddAfter(seconds(5), 3);
  progress_.Begin(int64_t{1} << 62);
  AddAfter(milliseconds(4999), int64_t{1} << 61);
  EXPECT_EQ(shown_, Shown({75, std::nullopt}));
  AddAfter(milliseconds(1), 0);
  EXPECT_EQ(shown_, Shown({75, std::nullopt, 50}));
}

}  // namespace
}  // namespace aft
