#include "base/json.h"

#include <string>

#include "gtest/gtest.h"

namespace aft {
namespace {

using Json = nlohmann::json;

TEST(JsonTest, AValueIsThatOfTheLibrarysOwnParser) {
  for (const char* text :
       {"null", " true ", "-0", "18446744073709551615", "-9223372036854775808", "1.5e-300", "\"\"",
        "\"\\u00e9\\ud83d\\ude00\\n\"", "[]", "{}", "[[],[[]],{}]",
        R"({"a": {"b": [1, {"c": [2.5, "x"]}, 3]}, "d": {}, "": [null, false]})",
        R"({"again": 1, "again": {"last": [true]}})"}) {
    Json value = "replaced";
    ASSERT_TRUE(ParseJson(text, value)) << text;
    EXPECT_EQ(value, Json::parse(text));
    EXPECT_EQ(value.type(), Json::parse(text).type()) << text;
  }
}

TEST(JsonTest, TextThatIsNoJsonIsRefused) {
  for (const char* text : {"", " ", "[1", "[1,]", "{\"a\" 1}", "{\"a\": 1} 2", "nul", "1e999", "01",
                           "\"\xff\"", "\"\\ud83d\"", "\"a\nb\"", "'a'", "[1] x"}) {
    Json value = "replaced";
    EXPECT_FALSE(ParseJson(text, value)) << text;
    EXPECT_TRUE(value.is_null()) << text;
  }
}

TEST(JsonTest, IsWrittenOnOneLineOrIndented) {
  const Json value = {{"b", {1, 2.5}}, {"a", "\xc3\xa9\"\xff"}};
  EXPECT_EQ(DumpJson(value), "{\"a\":\"\xc3\xa9\\\"\xef\xbf\xbd\",\"b\":[1,2.5]}");
  const nlohmann::ordered_json ordered = {{"b", {1}}, {"a", "\xff"}};
  EXPECT_EQ(DumpJson(ordered), "{\"b\":[1],\"a\":\"\xef\xbf\xbd\"}");
  EXPECT_EQ(DumpJson(ordered, 2), "{\n  \"b\": [\n    1\n  ],\n  \"a\": \"\xef\xbf\xbd\"\n}");
}

}  // namespace
}  // namespace aft
