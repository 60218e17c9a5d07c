#include "base/json_check.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(JsonCheckTest, FindsTheFirstWrongByte) {
  EXPECT_EQ(CheckJson(R"({"a": [1, "\u00e9"]})", 2).wrong_byte, 0U);
  EXPECT_EQ(CheckJson("{\"a\": }", 2).wrong_byte, 7U);
  EXPECT_THAT(CheckJson("{\"a\": }", 2).why, HasSubstr("unexpected '}'"));
  EXPECT_GT(CheckJson("{\"a\"", 2).wrong_byte, 4U);
  EXPECT_GT(CheckJson("", 2).wrong_byte, 0U);
  EXPECT_EQ(CheckJson("\"\xFF\"", 2).wrong_byte, 2U);
  EXPECT_EQ(CheckJson(std::string("{}\0", 3), 2).wrong_byte, 3U);
}

TEST(JsonCheckTest, FindsTheFirstKeyThatOccursTwiceInAnObject) {
  EXPECT_THAT(CheckJson(R"({"a": {"b": 1}, "b": [{"a": 1}, {"a": 2}]})", 3).twice, IsEmpty());
  EXPECT_THAT(CheckJson(R"({"a": {}, "b": [{"c": 1, "\u0063": 2}], "a": 1})", 3).twice,
              ElementsAre("b", "c"));
  EXPECT_THAT(CheckJson(R"({"": 1, "": 2})", 1).twice, ElementsAre(""));
  EXPECT_EQ(CheckJson(R"({"a": {"b": {"": 1, "": 2}}})", 3).TwicePath(), R"(a.b."")");
}

TEST(JsonCheckTest, BracketsOutsideOfStringsAreLevels) {
  EXPECT_FALSE(CheckJson(R"([{"a": "\"[[[", "b": {}}])", 3).too_deep);
  EXPECT_TRUE(CheckJson(R"([{"a": "\"[[[", "b": {}}])", 2).too_deep);
  EXPECT_TRUE(CheckJson(std::string(100'000, '['), 1000).too_deep);
}

}  // namespace
}  // namespace aft
