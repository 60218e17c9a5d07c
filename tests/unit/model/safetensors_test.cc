#include "model/checkpoint/safetensors.h"

#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "ATen/ops/arange.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/scalar_tensor.h"
#include "ATen/ops/zeros.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using testing::HasSubstr;

std::string Bytes(uint64_t number) {
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

std::string RawFile(const std::string& header, const std::string& data) {
  return Bytes(header.size()) + header + data;
}

absl::Status ReadError(const std::string& bytes) {
  TempFolder folder;
  WriteBytes(folder.File("x.safetensors"), bytes);
  return ReadSafetensors(folder.File("x.safetensors")).status();
}

TEST(SafetensorsTest, EveryDtypeRoundTripsExactly) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                     at::kInt, at::kShort, at::kChar, at::kByte, at::kBool}) {
    SCOPED_TRACE(at::toString(dtype));
    TempFolder folder;
    TensorMap tensors;
    tensors["matrix"] = at::arange(-7, 8).reshape({3, 5}).to(dtype);
    tensors["scalar"] = at::scalar_tensor(1).to(dtype);
    tensors["empty"] = at::empty({0, 4}, dtype);
    tensors["transposed"] = tensors["matrix"].t();
    ASSERT_TRUE(WriteSafetensors(folder.File("t"), tensors).ok());
    const absl::StatusOr<SafetensorsFile> file = ReadSafetensors(folder.File("t"));
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ(file->tensors.size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor& read = file->tensors.at(name);
      EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
      EXPECT_TRUE(read.is_contiguous()) << name;
      EXPECT_TRUE(at::equal(read, tensor)) << name;
    }
  }
}

TEST(SafetensorsTest, NoTensorsAndMetadataRoundTrip) {
  TempFolder folder;
  const std::map<std::string, std::string> metadata = {{"step", "12"}, {"note", "\"\n\xC3\xA9"}};
  ASSERT_TRUE(WriteSafetensors(folder.File("t"), {}, metadata).ok());
  const absl::StatusOr<SafetensorsFile> file = ReadSafetensors(folder.File("t"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->tensors.empty());
  EXPECT_EQ(file->metadata, metadata);
}

TEST(SafetensorsTest, WritesTheFormatByteForByte) {
  TempFolder folder;
  ASSERT_TRUE(WriteSafetensors(folder.File("t"), {{"a", at::arange(1, 3, at::kShort)}}).ok());
  const std::string header = R"({"a":{"dtype":"I16","shape":[2],"data_offsets":[0,4]}})";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(ReadBytes(folder.File("t")),
            RawFile(header + padding, std::string("\x01\x00\x02\x00", 4)));
}

TEST(SafetensorsTest, ATensorThatWasCutOffIsRefusedByName) {
  TempFolder folder;
  const std::string path = folder.File("t");
  ASSERT_TRUE(WriteSafetensors(path, {{"a", at::arange(4)}, {"b", at::arange(4)}}).ok());
  const auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(at::equal(*(*reader)->Read("b"), at::arange(4)));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_TRUE((*reader)->Read("a").ok());
  EXPECT_THAT((*reader)->Read("b").status(),
              StatusIs(absl::StatusCode::kDataLoss,
                       path + ": tensor 'b': the file became shorter while being read"));
}

TEST(SafetensorsTest, ReplacesAFileAndLeavesNothingElseBehind) {
  TempFolder folder;
  for (int64_t i = 1; i < 4; ++i) {
    ASSERT_TRUE(WriteSafetensors(folder.File("t"), {{"a", at::zeros({i})}}).ok());
    EXPECT_EQ(ReadSafetensors(folder.File("t"))->tensors.at("a").numel(), i);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SafetensorsTest, FailedWriteKeepsTheOldFile) {
  TempFolder folder;
  ASSERT_TRUE(WriteSafetensors(folder.File("t"), {{"a", at::zeros({3})}}).ok());
  const std::string before = ReadBytes(folder.File("t"));
  EXPECT_THAT(
      WriteSafetensors(folder.File("t"), {{"c", at::zeros({1}, at::kComplexFloat)}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensor 'c': dtype ComplexFloat")));
  EXPECT_EQ(ReadBytes(folder.File("t")), before);
}

TEST(SafetensorsTest, RefusesToWriteWhatCannotBeRead) {
  TempFolder folder;
  const std::string path = folder.File("t");
  const at::Tensor one = at::zeros({1});
  for (const TensorMap& tensors :
       {TensorMap{{"__metadata__", one}}, TensorMap{{"a", at::Tensor()}}, TensorMap{{"a\xFF", one}},
        TensorMap{{"a", at::zeros({2, 2}).to_sparse()}}}) {
    EXPECT_EQ(WriteSafetensors(path, tensors).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(WriteSafetensors(path, {}, {{"k", "\xFF"}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(WriteSafetensors(folder.File("no/such/folder"), {}).code(),
            absl::StatusCode::kNotFound);
}

TEST(SafetensorsTest, MissingFileIsNotFoundAndNamed) {
  TempFolder folder;
  EXPECT_THAT(ReadSafetensors(folder.File("none")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(folder.File("none"))));
}

TEST(SafetensorsTest, FoldersAndPipesAreRefusedAtOnce) {
  TempFolder folder;
  EXPECT_EQ(ReadSafetensors(folder.path()).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(mkfifo(folder.File("pipe").c_str(), 0600), 0);
  EXPECT_EQ(ReadSafetensors(folder.File("pipe")).status().code(), absl::StatusCode::kDataLoss);
}

TEST(SafetensorsTest, BrokenFilesAreRefusedWithTheirReason) {
  const std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string data(8, '\0');
  ASSERT_TRUE(ReadError(RawFile(header, data)).ok());
  const std::string bools("\1\0\1\0\1\0\1\2", 8);
  const std::pair<std::string, const char*> broken[] = {
      {"", "truncated: 0 bytes"},
      {"1234567", "truncated: 7 bytes"},
      {Bytes(~uint64_t{0}), "above the limit"},
      {Bytes(100'000'001) + header, "header length 100000001 is above the limit"},
      {Bytes(uint64_t{1} << 63) + header, "above the limit"},
      {Bytes(100'000'000) + header, "the header alone ends at 100000008"},
      {Bytes(0) + header, "does not start with '{'"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n",
       "a pointer of Git LFS instead of the file"},
      {RawFile(header, data.substr(1)), "tensor 'x': data_offsets [0, 8] are not within"},
      {RawFile(header, data + "!"), "1 bytes after the data of the last tensor"},
      {RawFile(R"({"m":{"dtype":"BOOL","shape":[8],"data_offsets":[0,8]}})", bools),
       "tensor 'm': BOOL data has a byte that is neither 0 nor 1"}};
  for (const auto& [bytes, message] : broken) {
    EXPECT_THAT(ReadError(bytes),
                StatusIs(absl::StatusCode::kDataLoss,
                         testing::AllOf(HasSubstr("/x.safetensors: "), HasSubstr(message))));
  }
}

std::string ValidFile() {
  TempFolder folder;
  TensorMap tensors;
  tensors["embed.weight"] = at::arange(24, at::kFloat).reshape({6, 4});
  tensors["flags"] = at::zeros({5}, at::kBool);
  tensors["layers.0.norm1.bias"] = at::arange(4, at::kBFloat16);
  tensors["nothing"] = at::empty({0}, at::kLong);
  AFT_CHECK(WriteSafetensors(folder.File("t"), tensors, {{"step", "1"}}).ok());
  return ReadBytes(folder.File("t"));
}

TEST(SafetensorsTest, EveryTruncationIsRefused) {
  const std::string valid = ValidFile();
  MemoryFile memory;
  for (size_t length = 0; length < valid.size(); ++length) {
    memory.Write(valid.substr(0, length));
    EXPECT_EQ(ReadSafetensors(memory.path()).status().code(), absl::StatusCode::kDataLoss)
        << length;
  }
}

TEST(SafetensorsTest, RandomByteChangesNeverCrash) {
  const std::string valid = ValidFile();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, valid.data(), sizeof(header_bytes));
  MemoryFile memory;
  std::mt19937 random(8);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = valid;
    // Most changes are in the length and the header, because there is little to break in the data.
    const size_t range = i % 4 == 0 ? bytes.size() : size_t{8} + header_bytes;
    for (uint32_t n = random() % 4; n < 4; ++n) {
      bytes[random() % range] ^= static_cast<char>(1U << (random() % 8));
    }
    memory.Write(bytes);
    const absl::StatusOr<SafetensorsFile> file = ReadSafetensors(memory.path());
    if (file.ok()) {
      for (const auto& [name, tensor] : file->tensors) EXPECT_LE(tensor.nbytes(), bytes.size());
    } else {
      EXPECT_EQ(file.status().code(), absl::StatusCode::kDataLoss) << file.status();
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace aft
