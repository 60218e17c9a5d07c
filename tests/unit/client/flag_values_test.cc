#include "client/tool/flag_values.h"

#include <gtest/gtest.h>

#include <chrono>

namespace aft::client {
namespace {

using std::chrono::milliseconds;

TEST(ToMillisecondsTest, ATimeIsNeverRoundedToNone) {
  EXPECT_EQ(ToMilliseconds(0), milliseconds(0));
  EXPECT_EQ(ToMilliseconds(0.0004), milliseconds(1));
  EXPECT_EQ(ToMilliseconds(1.5), milliseconds(1500));
}

}  // namespace
}  // namespace aft::client
