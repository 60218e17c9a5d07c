#include "model/checkpoint/safetensors_header.h"

#include <array>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

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

// The header of one tensor 'x', whose data are 8 bytes unless its offsets say otherwise.
std::string Entry(const std::string& shape, const std::string& dtype = "\"F32\"",
                  const std::string& offsets = "[0,8]") {
  return R"({"x":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}
// The header of tensors of bytes, each with its name, shape and offsets.
std::string Bytes(const std::vector<std::array<std::string, 3>>& tensors) {
  return "{" +
         absl::StrJoin(tensors, ",",
                       [](std::string* out, const auto& t) {
                         absl::StrAppend(out, "\"", t[0], "\":{\"dtype\":\"U8\",\"shape\":[", t[1],
                                         "],\"data_offsets\":[", t[2], "]}");
                       }) +
         "}";
}

TEST(SafetensorsHeaderTest, EveryFaultIsRefusedWithItsReason) {
  struct Bad {
    std::string json;
    const char* message;  // must be part of the error's message
    int64_t data_bytes = 8;
  };
  const std::string vast = "4611686018427387904";  // 2^62
  for (const Bad& bad : std::vector<Bad>{
           {"", "does not start with '{'"},
           {" {}", "does not start with '{'"},
           {"\xEF\xBB\xBF{}", "does not start with '{'"},
           {"[]", "does not start with '{'"},
           {std::string("{}\0x", 4), "NUL at byte 2"},
           {R"({"x":)", "not valid JSON"},
           {"{}{}", "not valid JSON"},
           {"{\"\xFF\":1}", "not valid JSON"},
           {"{\"a\xFF\":1}", "a\xEF\xBF\xBD"},
           {"{\"" + std::string(1000, 'x'), "xxx..."},
           {Entry("[1e999]"), "not valid JSON"},
           {R"({"x":)" + std::string(100'000, '['), "'x': must be an object"},
           // Entries.
           {R"({"x":1})", "'x': must be an object, got 1"},
           {R"({"x":"y"})", "'x': must be an object"},
           {R"({"x":null})", "'x': must be an object, got null"},
           {"{\"a\\nb\":1}", "tensor 'a\\nb'"},
           {R"({"x":{}})", "'x': key 'dtype' is missing"},
           {R"({"x":{"dtype":"F32","data_offsets":[0,8]}})", "'x': key 'shape' is missing"},
           {R"({"x":{"dtype":"F32","shape":[2]}})", "'x': key 'data_offsets' is missing"},
           {R"({"x":{"stride":[1]}})", "'x': unknown key 'stride'"},
           {R"({"x":{"dtype":"F32","dtype":"F32"}})", "'x': key 'dtype' given more than once"},
           {R"({"x":{"dtype":{}}})", "'x': key 'dtype' must be a string"},
           {Entry("[2]", "5"), "key 'dtype' must be a string"},
           {Entry("[2]", "[]"), "key 'dtype' must be a string"},
           {Entry("[1]", "\"C64\""), "'x': unknown dtype 'C64'"},
           {Entry("[2]", "\"f32\""), "'x': unknown dtype 'f32'"},
           // Shapes. 2^64 wraps to 0, so without a check it would be an empty tensor of huge shape.
           {Entry("\"2\""), "key 'shape' must be an array"},
           {Entry("[-2]"), "'x': shape has a negative number, -2"},
           {Entry("[2.0]"), "shape must hold whole numbers"},
           {Entry("[[2]]"), "shape must hold whole numbers, got an array"},
           {Entry("[true]"), "shape must hold whole numbers"},
           {Entry("[18446744073709551615]"), "'x': number too large"},
           {Entry("[4294967296,4294967296]"), "is too large"},
           {Entry("[4294967296,4294967296]", "\"U8\"", "[0,0]"), "is too large", 0},
           {Entry("[0," + vast + "," + vast + "]", "\"F32\"", "[0,0]"), "is too large", 0},
           {Entry("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "\"F64\""), "more than 16 dimensions"},
           // Offsets.
           {Entry("[2]", "\"F32\"", "[0]"), "must be two numbers"},
           {Entry("[2]", "\"F32\"", "[0,8,8]"), "must be two numbers"},
           {Entry("[2]", "\"F32\"", "[-8,0]"), "data_offsets has a negative number, -8"},
           {Entry("[2]", "\"F32\"", "[8,0]"), "are not within"},
           {Entry("[3]", "\"F32\"", "[0,12]"), "[0, 12] are not within the 8 bytes"},
           {Entry("[3]"), "hold 8 bytes, but F32 [3] needs 12"},
           {Entry("[3]", "\"F16\""), "hold 8 bytes, but F16 [3] needs 6"},
           // Data that belong to no tensor, or to several.
           {Entry("[1]", "\"F32\"", "[0,4]"), "4 bytes after the data of the last tensor"},
           {"{}", "8 bytes after the data of the last tensor"},
           {Entry("[1]", "\"F32\"", "[4,8]"), "leaving a gap after byte 0"},
           {Bytes({{"a", "2", "0,2"}, {"b", "4", "4,8"}}),
            "'b': starts at byte 4 of the data, leaving a gap after byte 2"},
           {Bytes({{"a", "5", "0,5"}, {"b", "4", "4,8"}}), "'b': overlaps the data of tensor 'a'"},
           {Bytes({{"a", "8", "0,8"}, {"b", "8", "0,8"}}), "'b': overlaps the data of tensor 'a'"},
           {Bytes({{"a", "8", "0,8"}, {"b", "0", "4,4"}}), "'b': overlaps the data of tensor 'a'"},
           {Bytes({{"x", "8", "0,8"}, {"x", "8", "0,8"}}), "'x': given more than once"},
           // Metadata.
           {R"({"__metadata__":{},"__metadata__":{}})", "'__metadata__': given more than once"},
           {R"({"__metadata__":{"k":"1","k":"2"}})", "key 'k' given more than once"},
           {R"({"__metadata__":{"k":1}})", "key 'k' must be a string, got 1"},
           {R"({"__metadata__":"k"})", "'__metadata__': must be an object, got \"k\""}}) {
    EXPECT_THAT(ParseSafetensorsHeader(bad.json, bad.data_bytes),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(bad.message)));
  }
}

// Checks what an accepted header promises: every byte of the data belongs to exactly one tensor,
// whose shape needs exactly its bytes.
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
  std::vector<std::string> fragments = absl::StrSplit(
      "{ } [ ] , : \" 0 1 -1 2 4 8 24 26 1e9 9223372036854775807 18446744073709551615 \"dtype\" "
      "\"shape\" \"data_offsets\" \"F32\" \"BF16\" \"a\" \"b\" \"__metadata__\" null true \\u0000",
      ' ');
  fragments.emplace_back(" ");
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
