#include "base/json_walk.h"

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

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

TEST(ShownJsonTest, LongValuesAreCutAndContainersAreNamed) {
  const std::string most(78, 'x');  // 80 characters with its quotes
  EXPECT_EQ(ShownJson(most), "\"" + most + "\"");
  EXPECT_EQ(ShownJson(most + "x"), "\"" + most + "x...");
  EXPECT_EQ(ShownJson("\u00e9"), R"("\u00e9")");
  EXPECT_EQ(ShownJson(nlohmann::json::object()), "an object");
  EXPECT_EQ(ShownJson(nlohmann::json::array()), "an array");
}

}  // namespace
}  // namespace aft
