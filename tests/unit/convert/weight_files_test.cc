// Tests whole and damaged weight files in the layouts of Hugging Face's libraries.

#include "model/convert/weight_files.h"

#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/ones.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/parity/goldens.h"
#include "tests/unit/convert/harness.h"

namespace aft {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

namespace fs = std::filesystem;

// A folder of two shards, with three tensors of 40 bytes in all.
class ShardsTest : public testing::Test {
 protected:
  ShardsTest() {
    Write(first_, {{"a", at::arange(4, at::kFloat)}, {"b", at::ones({2, 2}, at::kHalf)}});
    Write(second_, {{"c", at::ones({8}, at::kBFloat16)}});
    index_ = {{"metadata", {{"total_size", 40}}},
              {"weight_map", {{"a", first_}, {"b", first_}, {"c", second_}}}};
  }

  void Write(const std::string& name, const TensorMap& tensors) {
    AFT_CHECK(WriteSafetensors(folder_.File(name), tensors).ok());
  }
  absl::StatusOr<WeightFiles> OpenWith(const std::string& index) {
    WriteBytes(path_, index);
    return WeightFiles::OpenFolder(folder_.path());
  }
  absl::StatusOr<WeightFiles> Open() { return OpenWith(index_.dump()); }
  void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& file,
                   const std::string& problem) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(folder_.File(file)), HasSubstr(problem)));
  }
  void ExpectIndexRefused(const std::string& problem) {
    ExpectError(Open().status(), absl::StatusCode::kInvalidArgument, "model.safetensors.index.json",
                problem);
  }
  void ExpectLoss(const std::string& file, const std::string& problem) {
    ExpectError(Open().status(), absl::StatusCode::kDataLoss, file, problem);
  }

  const TempFolder folder_;
  const std::string first_ = "model-00001-of-00002.safetensors";
  const std::string second_ = "model-00002-of-00002.safetensors";
  const std::string path_ = folder_.File("model.safetensors.index.json");
  Json index_;
};

TEST_F(ShardsTest, AreOneSetOfTensors) {
  const auto files = Open();
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->entries().size(), 3U);
  const auto& entry = files->entries().at("b");
  EXPECT_EQ(entry.dtype, "F16");
  EXPECT_EQ(entry.shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(entry.shard, first_);
  EXPECT_TRUE(files->Read("a")->equal(at::arange(4, at::kFloat)));
  EXPECT_TRUE(files->Read("c")->equal(at::ones({8}, at::kBFloat16)));
  EXPECT_EQ(files->path(), path_);
  EXPECT_EQ(files->paths(),
            (std::vector<std::string>{path_, folder_.File(first_), folder_.File(second_)}));
}

TEST_F(ShardsTest, TheTotalMayBeMissingOrAFloat) {
  index_["metadata"] = {{"total_size", 40.0}, {"total_parameters", 16}};
  EXPECT_TRUE(Open().ok());
  index_["metadata"].erase("total_size");
  EXPECT_TRUE(Open().ok());
  index_.erase("metadata");
  EXPECT_TRUE(Open().ok());
}

TEST_F(ShardsTest, TheTotalMustBeRight) {
  for (const Json& wrong : {Json(41), Json(0), Json(-40), Json(40.5), Json(1e300)}) {
    index_["metadata"]["total_size"] = wrong;
    ExpectLoss("model.safetensors.index.json",
               "metadata.total_size: says " + wrong.dump() + " bytes, but the shards hold 40");
  }
  index_["metadata"]["total_size"] = "40";
  ExpectIndexRefused("metadata.total_size: must be a number, got");
}

TEST_F(ShardsTest, EachTensorIsWhereTheIndexSays) {
  index_["weight_map"]["c"] = first_;
  ExpectLoss(first_, "tensor 'c': is missing, according to model.safetensors.index.json");
  index_["weight_map"]["c"] = second_;
  index_["weight_map"]["d"] = second_;
  ExpectLoss(second_, "tensor 'd': is missing");
  index_["weight_map"].erase("d");
  index_["weight_map"].erase("b");
  ExpectLoss(first_, "tensor 'b': is in no shard according to");
  index_["weight_map"]["b"] = second_;
  ExpectLoss(first_, "tensor 'b': is in " + second_ + " according to");
  // The tensor is in two shards: in the one that the index names, and in another one.
  Write(second_, {{"b", at::ones({2, 2}, at::kHalf)}, {"c", at::ones({8}, at::kBFloat16)}});
  ExpectLoss(first_, "tensor 'b': is in " + second_ + " according to");
}

TEST_F(ShardsTest, ShardsAreFilesOfTheFolder) {
  Write("../stolen.safetensors", {{"c", at::ones({8}, at::kBFloat16)}});
  for (const std::string name : {"../stolen.safetensors", "/etc/passwd", "sub/x.safetensors", "..",
                                 ".", "", "model.pt", ".safetensors", ".hidden.safetensors",
                                 "line\n.safetensors", "../x.bin", "\u00e9.safetensors"}) {
    index_["weight_map"]["c"] = name;
    ExpectIndexRefused("tensor 'c': must be in a .safetensors or .bin file of this folder, got ");
  }
  fs::remove(folder_.File("../stolen.safetensors"));
  index_["weight_map"]["c"] = std::string(200, 'x') + ".safetensors";
  ExpectIndexRefused("tensor 'c': must be in a .safetensors or .bin file");
  index_["weight_map"]["c"] = std::string("x\0.safetensors", 14);
  ExpectIndexRefused("tensor 'c': must be in a .safetensors or .bin file");
  for (const Json& value : {Json(7), Json(nullptr), Json::array({first_}), Json::object()}) {
    index_["weight_map"]["c"] = value;
    ExpectIndexRefused("tensor 'c': must be in a .safetensors or .bin file");
  }
  index_["weight_map"]["c"] = "none.safetensors";
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ShardsTest, InvalidIndicesAreRefused) {
  const auto refused = [this](const std::string& index, const std::string& problem) {
    ExpectError(OpenWith(index).status(), absl::StatusCode::kInvalidArgument,
                "model.safetensors.index.json", problem);
  };
  refused("", "not valid JSON");
  refused("{", "not valid JSON");
  refused("[]", "must be an object, got an array");
  refused("{}", "weight_map: has no tensors");
  refused(R"({"weight_map": {}})", "weight_map: has no tensors");
  refused(R"({"weight_map": []})", "weight_map: must be an object, got an array");
  refused(R"({"metadata": 7})", "metadata: must be an object, got 7");
  refused("{\"weight_map\": {\"c\": \"" + second_ + "\", \"c\": \"" + first_ + "\"}}",
          "tensor 'c': given more than once");
  refused("{\"x\":" + std::string(1 << 20, '['), "more than 16 levels");
  refused(std::string("{}\0", 3), "NUL");
  refused(std::string((64 << 20) + 1, ' '), "at most");
}

TEST_F(ShardsTest, DamagedShardsAreNamed) {
  const std::string whole = ReadBytes(folder_.File(second_));
  for (const size_t size : {size_t{0}, size_t{7}, size_t{8}, size_t{60}, whole.size() - 1}) {
    WriteBytes(folder_.File(second_), whole.substr(0, size));
    ExpectLoss(second_, "");
  }
  std::string huge = whole;
  std::memset(huge.data(), 0xFF, 8);
  WriteBytes(folder_.File(second_), huge);
  ExpectLoss(second_, "header length");
  WriteBytes(folder_.File(second_), whole + "x");
  ExpectLoss(second_, "1 bytes after the data of the last tensor");
}

// In the cache of the Hugging Face hub, the files are links.
TEST_F(ShardsTest, LinksAreFollowedToFilesOnly) {
  const std::string link = folder_.File(second_);
  fs::rename(link, folder_.File("blob"));
  fs::create_symlink("blob", link);
  EXPECT_TRUE(Open().ok());
  const auto relink = [&](const std::string& target) {
    fs::remove(link);
    fs::create_symlink(target, link);
  };
  relink("nothing");
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kNotFound);
  relink(second_);  // to itself
  EXPECT_FALSE(Open().ok());
  relink("/dev/zero");
  ExpectLoss(second_, "not a regular file");
  relink(".");
  ExpectLoss(second_, "not a regular file");
  ASSERT_EQ(mkfifo(folder_.File("pipe").c_str(), 0600), 0);
  relink("pipe");  // no process writes to it
  ExpectLoss(second_, "not a regular file");
}

// The file is sparse. It has the 4 TiB that its header claims, which is more than any memory.
TEST_F(ShardsTest, WeightsBeyondTheMemoryAreRefusedBeforeTheyAreRead) {
  const int64_t bytes = int64_t{4} << 40;
  std::string header =
      Json{{"c", {{"dtype", "U8"}, {"shape", {bytes}}, {"data_offsets", {0, bytes}}}}}.dump();
  const uint64_t length = header.size();
  WriteBytes(folder_.File(second_),
             std::string(reinterpret_cast<const char*>(&length), 8) + header);
  fs::resize_file(folder_.File(second_), 8 + length + static_cast<uintmax_t>(bytes));
  index_["metadata"]["total_size"] = bytes + 24;
  ExpectError(Open().status(), absl::StatusCode::kResourceExhausted, "model.safetensors.index.json",
              "tensor 'c': has 4398046511104 bytes, but ");
  EXPECT_EQ(WeightFiles::OpenFile(folder_.File(second_)).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(ShardsTest, OneFileOrShardsButNotBoth) {
  Write("model.safetensors", {{"a", at::ones({1})}});
  ExpectIndexRefused("model.safetensors exists too; remove one of the two");
  fs::remove(path_);
  const auto one = WeightFiles::OpenFolder(folder_.path());
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->paths(), std::vector<std::string>{folder_.File("model.safetensors")});
  EXPECT_EQ(one->entries().at("a").shard, "");
  fs::remove(folder_.File("model.safetensors"));
  EXPECT_EQ(WeightFiles::OpenFolder(folder_.path()).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ShardsTest, FilesOfTorchSaveAreReadWhereThereAreNoOthers) {
  const std::string pickle = folder_.File("pytorch_model.bin");
  fs::copy("tests/parity/goldens/labml_pickled.pt", pickle);
  const TensorMap expected = ReadGoldens("labml_pickled").tensors;
  EXPECT_EQ(Open()->path(), path_);
  fs::remove(path_);
  EXPECT_EQ(WeightFiles::OpenFolder(folder_.path())->path(), pickle);
  index_ = {{"metadata", {{"total_size", 1}}}};
  for (const auto& [name, tensor] : expected) index_["weight_map"][name] = "one.bin";
  WriteBytes(folder_.File("pytorch_model.bin.index.json"), index_.dump());
  ExpectError(WeightFiles::OpenFolder(folder_.path()).status(), absl::StatusCode::kInvalidArgument,
              "pytorch_model.bin.index.json",
              "pytorch_model.bin exists too; remove one of the two");
  fs::rename(pickle, folder_.File("one.bin"));
  const auto files = WeightFiles::OpenFolder(folder_.path());
  ASSERT_TRUE(files.ok()) << files.status();
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(files->Read(name)->equal(tensor)) << name;
}

TEST_F(ShardsTest, TensorsInMemoryAreReadInTheSameWay) {
  const WeightFiles files = TensorMap{{"a", at::ones({2, 3}, at::kBFloat16)}};
  EXPECT_EQ(files.entries().at("a").dtype, "BF16");
  EXPECT_EQ(files.entries().at("a").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(files.Read("a")->equal(at::ones({2, 3}, at::kBFloat16)));
  EXPECT_TRUE(files.paths().empty());
}

}  // namespace
}  // namespace aft
