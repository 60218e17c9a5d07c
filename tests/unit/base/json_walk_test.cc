#include "base/json_walk.h"

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace aft {
namespace {

TEST(WalkJsonTest, EntersTheMostLevelsButNoMore) {
  const auto walk = [](size_t levels) {
    const std::string text = std::string(levels, '[') + std::string(levels, ']');
    return WalkJson(text, [](const JsonPath&, const nlohmann::json&) { return absl::OkStatus(); });
  };
  EXPECT_EQ(walk(kMaxJsonLevels), absl::OkStatus());
  EXPECT_EQ(walk(kMaxJsonLevels + 1),
            absl::InvalidArgumentError(
                absl::StrCat("more than ", kMaxJsonLevels, " levels of objects and arrays")));
}

}  // namespace
}  // namespace aft
