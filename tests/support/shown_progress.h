#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "gtest/gtest.h"

namespace aft {

// A Progress that shows each step, and what it showed.
struct ShownProgress {
  std::vector<int> percents;
  Progress progress{Progress::Clock::duration::zero(), [this](std::optional<int> percent) {
                      if (percent.has_value()) percents.push_back(*percent);
                    }};

  // Expects that the percentages of one task rose to 100, in several steps, and reached it only at
  // the end. Forgets them.
  void ExpectComplete() {
    ASSERT_GT(percents.size(), 4U);
    EXPECT_TRUE(std::is_sorted(percents.begin(), percents.end()));
    EXPECT_EQ(percents.back(), 100);
    EXPECT_LT(percents[percents.size() * 3 / 4], 100);
    percents.clear();
  }
};

}  // namespace aft
