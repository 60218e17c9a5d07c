#include "model/checkpoint/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_replace.h"
#include "base/atomic_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/stored_weights.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using testing::StartsWith;

NetworkConfig SmallConfig() {
  NetworkConfig config;
  config.vocab_size = 256;
  config.d_model = 8;
  config.n_layers = 1;
  config.d_ff = 16;
  config.mixer.window = 4;
  return config;
}

TensorMap SomeTensors() { return {{"embed.weight", at::zeros({256, 8})}}; }

TEST(AtomicFileTest, TheOldContentStaysUntilAllOfTheNewIsThere) {
  TempFolder folder;
  const std::string path = folder.File("file");
  ASSERT_TRUE(WriteFileAtomically(path, {"old"}).ok());
  std::ifstream reader(path);  // keeps the old file, which is replaced and not changed
  ASSERT_TRUE(WriteFileAtomically(path, {"1", "", "st"}).ok());
  std::string old;
  reader >> old;
  EXPECT_EQ(old, "old");
  EXPECT_EQ(ReadBytes(path), "1st");
  std::filesystem::create_directory(folder.File("folder"));
  EXPECT_FALSE(WriteFileAtomically(folder.File("folder"), {"x"}).ok());
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 2) << "nothing temporary is left";
}

TEST(CheckpointTest, RoundTripsThroughAFolderThatItCreates) {
  TempFolder folder;
  const std::string dir = folder.File("a/b");
  ASSERT_TRUE(WriteCheckpoint(dir, SmallConfig(), SomeTensors(), {{"step", "5"}}).ok());
  const absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(FormatNetworkConfig(checkpoint->config), FormatNetworkConfig(SmallConfig()));
  ASSERT_EQ(checkpoint->tensors.size(), 1U);
  EXPECT_TRUE(at::equal(checkpoint->tensors.at("embed.weight"), at::zeros({256, 8})));
  EXPECT_EQ(checkpoint->metadata.at("step"), "5");
}

// Breaks the files of a checkpoint one after the other.
TEST(CheckpointTest, ErrorsNameTheFile) {
  TempFolder folder;
  const std::string config = folder.File("config.json");
  const std::string weights = folder.File("model.safetensors");
  const auto expect = [&](absl::StatusCode code, const std::string& message) {
    const absl::Status status = ReadCheckpoint(folder.path()).status();
    EXPECT_EQ(status.code(), code);
    EXPECT_THAT(std::string(status.message()), StartsWith(message));
  };
  expect(absl::StatusCode::kNotFound, "cannot read " + config);
  ASSERT_TRUE(WriteCheckpoint(folder.path(), SmallConfig(), SomeTensors()).ok());
  WriteBytes(weights, "not weights at all");
  expect(absl::StatusCode::kDataLoss, weights + ": ");
  std::filesystem::remove(weights);
  expect(absl::StatusCode::kNotFound, "cannot open " + weights);
  WriteBytes(config, absl::StrReplaceAll(ReadBytes(config), {{"\"window\": 4", "\"window\": -3"}}));
  expect(absl::StatusCode::kInvalidArgument, config + ": mixer.window: must be >= 0 ");
  const std::string json = FormatNetworkConfig(SmallConfig());
  WriteBytes(config, json + std::string((1 << 20) - json.size(), ' '));
  expect(absl::StatusCode::kNotFound, "cannot open " + weights);
  WriteBytes(config, std::string(3 << 20, ' '));
  expect(absl::StatusCode::kInvalidArgument, config + ": 3145728 bytes; at most 1048576");
  std::filesystem::remove(config);
  std::filesystem::create_directory(config);
  expect(absl::StatusCode::kInvalidArgument, config + ": not a regular file");
}

// Formats of less than four bytes are read in parts of 2^20 numbers.
TEST(CheckpointTest, MatricesOfSeveralPartsAreReadWhole) {
  const TempFolder folder;
  const at::Tensor numbers = at::arange(3 * 700'001).remainder(251).sub(125).view({3, -1});
  const at::Tensor scale = at::tensor({1.0F, 2.0F, 0.5F});
  ASSERT_TRUE(WriteSafetensors(folder.File("x"), {{"bf16", numbers.to(at::kBFloat16)},
                                                  {"f16", numbers.to(at::kHalf)},
                                                  {"i8", numbers.to(at::kChar)},
                                                  {"i8.scale", scale}})
                  .ok());
  auto reader = SafetensorsReader::Open(folder.File("x"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto tensors = ExpandedTensors(*std::move(reader));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  const at::Tensor expected = numbers.to(at::kFloat);
  EXPECT_TRUE(at::equal(*tensors->Read("bf16"), expected));
  EXPECT_TRUE(at::equal(*tensors->Read("f16"), expected));
  EXPECT_TRUE(at::equal(*tensors->Read("i8"), expected * scale.unsqueeze(1)));
}

TEST(CheckpointTest, InvalidConfigIsNotWritten) {
  TempFolder folder;
  NetworkConfig config = SmallConfig();
  config.mixer.prefix_block = 2;
  const absl::Status status = WriteCheckpoint(folder.File("new"), config, SomeTensors());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("mixer.prefix_block: "));
  EXPECT_FALSE(std::filesystem::exists(folder.File("new")));
}

TEST(CheckpointTest, UnwritableFolderIsAnError) {
  TempFolder folder;
  WriteBytes(folder.File("file"), "");
  EXPECT_FALSE(WriteCheckpoint(folder.File("file/dir"), SmallConfig(), SomeTensors()).ok());
}

}  // namespace
}  // namespace aft
