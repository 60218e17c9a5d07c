#include "model/checkpoint/safetensors_header.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aft {
namespace {

using testing::HasSubstr;

constexpr char kTwoTensors[] = R"({"__metadata__":{"step":"7"},)"
                               R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                               R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})";

TEST(SafetensorsHeaderTest, ReadsTensorsAndMetadata) {
  const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(kTwoTensors, 26);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 2U);
  const TensorEntry& a = header->tensors.at("a");
  EXPECT_EQ(a.dtype, "F32");
  EXPECT_THAT(a.shape, testing::ElementsAre(2, 3));
  EXPECT_EQ(a.begin, 0);
  EXPECT_EQ(a.end, 24);
  EXPECT_THAT(header->tensors.at("b").shape, testing::IsEmpty());
  EXPECT_EQ(header->metadata.at("step"), "7");
}

TEST(SafetensorsHeaderTest, AcceptsPaddingEmptyTensorsAndEmptyFiles) {
  EXPECT_TRUE(ParseSafetensorsHeader(std::string(kTwoTensors) + "     ", 26).ok());
  EXPECT_TRUE(ParseSafetensorsHeader("{}", 0).ok());
  EXPECT_TRUE(ParseSafetensorsHeader(R"({"__metadata__":{}})", 0).ok());
  EXPECT_TRUE(ParseSafetensorsHeader(R"({"e":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]},)"
                                     R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                     R"("z":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}})",
                                     4)
                  .ok());
}

struct BadHeader {
  const char* name;
  std::string json;
  const char* message;  // must be part of the error's
  int64_t data_bytes = 8;
};

// The entry of a tensor 'x' that fills the 8 bytes of data, with one thing replaced.
std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"x":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

class BadHeaderTest : public testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaderTest, IsRefusedWithItsReason) {
  const BadHeader& bad = GetParam();
  const absl::Status status = ParseSafetensorsHeader(bad.json, bad.data_bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
}

INSTANTIATE_TEST_SUITE_P(
    EveryCheck, BadHeaderTest,
    testing::Values(
        BadHeader{"Empty", "", "does not start with '{'"},
        BadHeader{"LeadingSpace", " {}", "does not start with '{'"},
        BadHeader{"ByteOrderMark", "\xEF\xBB\xBF{}", "does not start with '{'"},
        BadHeader{"Array", "[]", "does not start with '{'"},
        BadHeader{"Nul", std::string("{}\0x", 4), "NUL at byte 2"},
        BadHeader{"CutOff", R"({"x":)", "not valid JSON"},
        BadHeader{"TrailingText", "{}{}", "not valid JSON"},
        BadHeader{"InvalidUtf8", "{\"\xFF\":1}", "not valid JSON"},
        BadHeader{"DeepNesting", R"({"x":)" + std::string(100'000, '['), "'x': must be an object"},
        BadHeader{"HugeNumber", Entry("\"F32\"", "[1e999]", "[0,8]"), "not valid JSON"},
        BadHeader{"EntryNumber", R"({"x":1})", "'x': must be an object, not the number 1"},
        BadHeader{"EntryString", R"({"x":"y"})", "'x': must be an object"},
        BadHeader{"EntryNull", R"({"x":null})", "'x': must be an object, not null"},
        BadHeader{"EntryEmpty", R"({"x":{}})", "'x': key 'dtype' is missing"},
        BadHeader{"NoShape", R"({"x":{"dtype":"F32","data_offsets":[0,8]}})",
                  "'x': key 'shape' is missing"},
        BadHeader{"NoOffsets", R"({"x":{"dtype":"F32","shape":[2]}})",
                  "'x': key 'data_offsets' is missing"},
        BadHeader{"UnknownKey", R"({"x":{"stride":[1]}})", "'x': unknown key 'stride'"},
        BadHeader{"KeyTwice", R"({"x":{"dtype":"F32","dtype":"F32"}})",
                  "'x': key 'dtype' given more than once"},
        BadHeader{"NestedObject", R"({"x":{"dtype":{}}})", "'x': key 'dtype' must be a string"},
        BadHeader{"DtypeNumber", Entry("5", "[2]", "[0,8]"), "key 'dtype' must be a string"},
        BadHeader{"DtypeArray", Entry("[]", "[2]", "[0,8]"), "key 'dtype' must be a string"},
        BadHeader{"DtypeUnknown", Entry("\"C64\"", "[1]", "[0,8]"), "'x': unknown dtype 'C64'"},
        BadHeader{"DtypeCase", Entry("\"f32\"", "[2]", "[0,8]"), "'x': unknown dtype 'f32'"},
        BadHeader{"ShapeString", Entry("\"F32\"", "\"2\"", "[0,8]"),
                  "key 'shape' must be an array"},
        BadHeader{"ShapeNegative", Entry("\"F32\"", "[-2]", "[0,8]"),
                  "'x': shape has a negative number, -2"},
        BadHeader{"ShapeFraction", Entry("\"F32\"", "[2.0]", "[0,8]"),
                  "shape must hold whole numbers"},
        BadHeader{"ShapeNested", Entry("\"F32\"", "[[2]]", "[0,8]"),
                  "shape must hold whole numbers, not an array"},
        BadHeader{"ShapeBool", Entry("\"F32\"", "[true]", "[0,8]"),
                  "shape must hold whole numbers"},
        BadHeader{"ShapeTooLarge", Entry("\"F32\"", "[18446744073709551615]", "[0,8]"),
                  "'x': number too large"},
        BadHeader{"ShapeOverflow", Entry("\"F32\"", "[4294967296,4294967296]", "[0,8]"),
                  "is too large"},
        // 2^64 wraps to 0: without the check an empty tensor of huge shape.
        BadHeader{"ShapeWrapsToZero", Entry("\"U8\"", "[4294967296,4294967296]", "[0,0]"),
                  "is too large", 0},
        BadHeader{"EmptyShapeOverflow",
                  Entry("\"F32\"", "[0,4611686018427387904,4611686018427387904]", "[0,0]"),
                  "is too large", 0},
        BadHeader{"TooManyDimensions",
                  Entry("\"F64\"", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,8]"),
                  "more than 16 dimensions"},
        BadHeader{"OffsetsOne", Entry("\"F32\"", "[2]", "[0]"), "must be two numbers"},
        BadHeader{"OffsetsThree", Entry("\"F32\"", "[2]", "[0,8,8]"), "must be two numbers"},
        BadHeader{"OffsetsNegative", Entry("\"F32\"", "[2]", "[-8,0]"),
                  "data_offsets has a negative number, -8"},
        BadHeader{"OffsetsReversed", Entry("\"F32\"", "[2]", "[8,0]"), "are not within"},
        BadHeader{"OffsetsPastTheEnd", Entry("\"F32\"", "[3]", "[0,12]"),
                  "[0, 12] are not within the 8 bytes"},
        BadHeader{"TooFewBytes", Entry("\"F32\"", "[3]", "[0,8]"),
                  "hold 8 bytes, but F32 [3] needs 12"},
        BadHeader{"TooManyBytes", Entry("\"F16\"", "[3]", "[0,8]"),
                  "hold 8 bytes, but F16 [3] needs 6"},
        BadHeader{"DataAfterTheLast", Entry("\"F32\"", "[1]", "[0,4]"),
                  "4 bytes after the data of the last tensor"},
        BadHeader{"DataWithoutTensors", "{}", "8 bytes after the data of the last tensor"},
        BadHeader{"GapInFront", Entry("\"F32\"", "[1]", "[4,8]"), "leaving a gap after byte 0"},
        BadHeader{"GapBetween",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                  R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                  "'b': starts at byte 4 of the data, leaving a gap after byte 2"},
        BadHeader{"Overlap",
                  R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                  R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                  "'b': overlaps the data of tensor 'a'"},
        BadHeader{"SamePlace",
                  R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                  "'b': overlaps the data of tensor 'a'"},
        BadHeader{"EmptyInsideAnother",
                  R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})",
                  "'b': overlaps the data of tensor 'a'"},
        BadHeader{"TensorTwice",
                  R"({"x":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                  R"("x":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                  "'x': given more than once"},
        BadHeader{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})",
                  "'__metadata__': given more than once"},
        BadHeader{"MetadataKeyTwice", R"({"__metadata__":{"k":"1","k":"2"}})",
                  "key 'k' given more than once"},
        BadHeader{"MetadataNumber", R"({"__metadata__":{"k":1}})",
                  "key 'k' must be a string, not the number 1"},
        BadHeader{"MetadataString", R"({"__metadata__":"k"})",
                  "'__metadata__': must be an object, not a string"},
        BadHeader{"EscapedName", "{\"a\\nb\":1}", "tensor 'a\\nb'"}),
    [](const testing::TestParamInfo<BadHeader>& test) { return std::string(test.param.name); });

// What an accepted header promises, checked in the plainest way: every byte of the data belongs to
// exactly one tensor, whose shape needs exactly its bytes.
void ExpectTiles(const SafetensorsHeader& header, int64_t data_bytes) {
  std::vector<int> owners(static_cast<size_t>(data_bytes));
  for (const auto& [name, entry] : header.tensors) {
    int64_t bytes = SafetensorsDtypeBytes(entry.dtype);
    for (const int64_t dim : entry.shape) bytes *= dim;
    ASSERT_EQ(entry.end - entry.begin, bytes) << name;
    ASSERT_GE(entry.begin, 0) << name;
    ASSERT_LE(entry.end, data_bytes) << name;
    for (int64_t i = entry.begin; i < entry.end; ++i) ++owners[static_cast<size_t>(i)];
  }
  EXPECT_THAT(owners, testing::Each(1));
}

// Cuts pieces out, doubles them, and puts in fragments that mean something to the parser.
TEST(SafetensorsHeaderTest, RandomSplicesNeverCrashAndAcceptedOnesTileTheData) {
  const std::vector<std::string> fragments = {"{",
                                              "}",
                                              "[",
                                              "]",
                                              ",",
                                              ":",
                                              "\"",
                                              "0",
                                              "1",
                                              "-1",
                                              "2",
                                              "4",
                                              "8",
                                              "24",
                                              "26",
                                              "1e9",
                                              "9223372036854775807",
                                              "18446744073709551615",
                                              "\"dtype\"",
                                              "\"shape\"",
                                              "\"data_offsets\"",
                                              "\"F32\"",
                                              "\"BF16\"",
                                              "\"a\"",
                                              "\"b\"",
                                              "\"__metadata__\"",
                                              "null",
                                              "true",
                                              "\\u0000",
                                              " "};
  std::mt19937 random(9);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string json = kTwoTensors;
    for (auto n = random() % 3; n < 3; ++n) {
      const size_t from = random() % json.size();
      const size_t length = random() % 3 == 0 ? random() % 30 : random() % 3;
      const size_t kind = random() % 3;
      if (kind == 0) {
        json.replace(from, length, fragments[random() % fragments.size()]);
      } else if (kind == 1) {
        json.insert(random() % json.size(), json.substr(from, length));
      } else if (json.size() > from + length) {
        json.erase(from, length);
      }
    }
    const int64_t data_bytes = random() % 4 == 0 ? static_cast<int64_t>(random() % 64) : 26;
    const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(json, data_bytes);
    if (header.ok()) {
      ExpectTiles(*header, data_bytes);
      ++accepted;
    } else {
      EXPECT_EQ(header.status().code(), absl::StatusCode::kDataLoss);
      EXPECT_FALSE(header.status().message().empty());
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 10'000);
}

}  // namespace
}  // namespace aft
