// Tests files of torch.save: what torch writes is read exactly, and all other files are refused.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/arange.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/convert/weight_files.h"
#include "tests/parity/goldens.h"
#include "tests/support/status_matchers.h"
#include "tests/support/torch_archive.h"
#include "tests/unit/convert/harness.h"

namespace aft {
namespace {

using namespace pickled;  // NOLINT(google-build-using-namespace)
using testing::HasSubstr;

const char kGolden[] = "tests/parity/goldens/labml_pickled";

class TorchFileTest : public testing::Test {
 protected:
  using Records = std::vector<std::pair<std::string, std::string>>;

  absl::StatusOr<WeightFiles> OpenBytes(const std::string& bytes,
                                        const std::vector<std::string>& keys = {}) {
    file_.Write(bytes);
    return WeightFiles::OpenFile(file_.path(), keys);
  }
  // Opens a file with a pickle of `value`, and with `data` in each of the storages "0" and "1".
  absl::StatusOr<WeightFiles> Open(const std::string& value,
                                   const std::vector<std::string>& keys = {},
                                   const Records& more = {}) {
    Records records = {{"a/data.pkl", Program(value)}, {"a/data/0", data_}, {"a/data/1", data_}};
    records.insert(records.end(), more.begin(), more.end());
    return OpenBytes(ZipOf(records), keys);
  }
  void ExpectRefused(const absl::Status& status, const std::string& problem) {
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(testing::StartsWith(file_.path() + ": "), HasSubstr(problem)));
  }

  MemoryFile file_;
  std::string data_ = std::string("\1\0\1\1\0\1\0\0\1\1\0\1\1\1\0\0", 16);
  const std::string four_ = Storage("Float", "0", 4);
  const std::string good_ = Dict({{"w", Tensor(four_, 0, {4}, {1})}});
};

TEST_F(TorchFileTest, ReadsWhatTorchSaved) {
  const auto files = WeightFiles::OpenFile(std::string(kGolden) + ".pt");
  ASSERT_TRUE(files.ok()) << files.status();
  const TensorMap expected = ReadGoldens("labml_pickled").tensors;
  ASSERT_EQ(files->entries().size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_EQ(files->entries().at(name).shape, tensor.sizes().vec());
    EXPECT_TRUE(files->Read(name)->equal(tensor)) << name;
  }
}

TEST_F(TorchFileTest, EveryTypeIsKeptBitForBit) {
  for (const auto& [type, dtype] : std::map<std::string, std::string>{{"Double", "F64"},
                                                                      {"Float", "F32"},
                                                                      {"Half", "F16"},
                                                                      {"BFloat16", "BF16"},
                                                                      {"Long", "I64"},
                                                                      {"Int", "I32"},
                                                                      {"Short", "I16"},
                                                                      {"Char", "I8"},
                                                                      {"Byte", "U8"},
                                                                      {"Bool", "BOOL"}}) {
    const int64_t count = 16 / SafetensorsDtypeBytes(dtype);
    const auto files = Open(Dict({{"w", Tensor(Storage(type, "1", count), 0, {count}, {1})}}));
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(files->entries().at("w").dtype, dtype);
    const at::Tensor read = *files->Read("w");
    EXPECT_EQ(std::string(static_cast<const char*>(read.const_data_ptr()), read.nbytes()), data_);
  }
}

TEST_F(TorchFileTest, ViewsAreReadRowByRow) {
  const at::Tensor base = at::arange(12, at::kShort);
  data_ = std::string(static_cast<const char*>(base.const_data_ptr()), base.nbytes());
  struct View {
    int64_t offset;
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
  };
  for (const View& view : {View{0, {3, 4}, {4, 1}}, View{0, {4, 3}, {1, 4}}, View{2, {3}, {4}},
                           View{4, {2, 4}, {4, 1}}, View{1, {3, 2}, {4, 1}}, View{7, {}, {}},
                           View{1, {2, 3}, {0, 1}}, View{0, {2, 2, 3}, {1, 6, 2}}}) {
    const auto files = Open(
        Dict({{"v", Tensor(Storage("Short", "0", 12), view.offset, view.shape, view.strides)}}));
    ASSERT_TRUE(files.ok()) << files.status();
    const at::Tensor read = *files->Read("v");
    EXPECT_TRUE(read.is_contiguous());
    EXPECT_TRUE(read.equal(base.as_strided(view.shape, view.strides, view.offset)));
  }
}

TEST_F(TorchFileTest, ParametersKeptValuesAndAttributesAreRead) {
  const std::string empty = Call(Name("collections", "OrderedDict"), ")");
  const std::string parameter = Call(Name("torch._utils", "_rebuild_parameter"),
                                     Tuple({Tensor(four_, 0, {2}, {1}), "\x88", empty}));
  // The dict is kept in place 5, gets an item, then attributes; at the end it is used from there.
  const std::string value = empty + "q\5" + Text("w") + parameter + "s" +
                            Dict({{"_metadata", empty}}) + "b" + Tuple({"h\5", "h\5"}) + "h\5";
  const auto files = Open(value);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->entries().at("w").shape, std::vector<int64_t>{2});
}

// torch.save gives its values numbers of four bytes from the 257th value on.
TEST_F(TorchFileTest, PlacesBeyondAByteKeepValues) {
  const std::string far = BytesOf<uint32_t>(70'000);
  const std::string near = BytesOf<uint32_t>(70'000 - 65'536);
  const auto files = Open(good_ + "r" + far + "N" + "r" + near + "\x86" + "j" + far);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->entries().count("w"), 1U);
}

TEST_F(TorchFileTest, KeysLeadToTheStateDict) {
  const std::string value =
      Dict({{"epoch", "K\3"}, {"net", Dict({{"model", good_}, {"ema", Dict({{"e", "N"}})}})}});
  const auto files = Open(value, {"net", "model"});
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->entries().count("w"), 1U);
  ExpectRefused(
      Open(value).status(),
      "tensor 'epoch': its name is a str and its value an int; give --key with one of: net");
  ExpectRefused(Open(value, {"net"}).status(), "give --key with one of: model, ema");
  ExpectRefused(Open(value, {"model"}).status(), "there is no key 'model' in it");
  ExpectRefused(Open(value, {"epoch"}).status(), "it must hold a dict with tensors, got an int");
  EXPECT_THAT(WeightFiles::OpenFile(std::string(kGolden) + ".safetensors", {{"model"}}),
              Refused("only a file of torch.save has keys"));
}

TEST_F(TorchFileTest, KeysHoldForTheFilesOfAFolder) {
  const TempFolder folder;
  const std::string file =
      ZipOf({{"a/data.pkl", Program(Dict({{"model", good_}}))}, {"a/data/0", data_}});
  for (const char* name : {"pytorch_model.bin", "one.bin"}) WriteBytes(folder.File(name), file);
  EXPECT_THAT(WeightFiles::OpenFolder(folder.path()), Refused("give --key with one of: model"));
  EXPECT_TRUE(WeightFiles::OpenFolder(folder.path(), {{"model"}}).ok());
  std::filesystem::remove(folder.File("pytorch_model.bin"));
  WriteBytes(folder.File("pytorch_model.bin.index.json"), R"({"weight_map": {"w": "one.bin"}})");
  const auto shards = WeightFiles::OpenFolder(folder.path(), {{"model"}});
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_EQ(shards->entries().at("w").shard, "one.bin");
}

// A tensor of two numbers that are the first and the last of a storage of 4 TiB.
TEST_F(TorchFileTest, StridesBeyondTheMemoryAreRefusedBeforeTheyAreRead) {
  constexpr int64_t kNumbers = int64_t{1} << 40;
  constexpr int64_t kBytes = 4 * kNumbers;
  // One tensor reads all of the file, the other repeats its first number.
  for (const auto& [shape, stride] :
       {std::pair(int64_t{2}, kNumbers - 1), std::pair(kNumbers, int64_t{0})}) {
    const std::string value =
        Dict({{"w", Tensor(Storage("Float", "0", kNumbers), 0, {shape}, {stride})}});
    const std::string zip =
        ZipOf({{"a/data.pkl", Program(value)}, {"a/data/0", ""}}, /*wide=*/true);
    const size_t begin = zip.find("PK\1\2");  // of the directory, which moves
    std::string directory = zip.substr(begin);
    const size_t sizes = directory.rfind(std::string("\1\0\x18\0", 4)) + 4;
    directory.replace(sizes, 16, BytesOf(kBytes) + BytesOf(kBytes));
    directory.replace(directory.find("PK\6\6") + 48, 8,
                      BytesOf(static_cast<int64_t>(begin) + kBytes));
    const TempFolder folder;
    const std::string path = folder.File("sparse.pth");
    WriteBytes(path, zip.substr(0, begin));
    std::filesystem::resize_file(path, begin + static_cast<uintmax_t>(kBytes));
    std::ofstream(path, std::ios::binary | std::ios::app) << directory;
    EXPECT_THAT(WeightFiles::OpenFile(path),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("tensor 'w': has 4398046511104 bytes")));
  }
}

TEST_F(TorchFileTest, OnlyTheNamesAndCallsOfAStateDictAreKnown) {
  const auto refused = [this](const std::vector<std::string>& values, const std::string& problem) {
    for (const std::string& value : values) ExpectRefused(Open(value).status(), problem);
  };
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"posix", "system"},
                                                        {"builtins", "eval"},
                                                        {"torch._utils", "_rebuild_other"},
                                                        {"torch", "ComplexFloatStorage"},
                                                        {"collections", "OrderedDict.fromkeys"}}) {
    refused({Dict({{"w", Call(Name(module, name), ")")}})},
            absl::StrCat("it names ", module, ".", name, ", which is no part of a state_dict"));
  }
  refused({Call(Name("collections", "OrderedDict"), Tuple({"N"})),
           Call(Name("torch", "FloatStorage"), ")"), Call("]", ")"),
           Call(Name("torch._utils", "_rebuild_tensor_v2"), Tuple({four_, "K\1", ")"})),
           Call(Name("torch._utils", "_rebuild_parameter"), ")")},
          "it makes a call that is no part of a state_dict");
  refused({"]}b"}, "it sets attributes of a value that is not a dict");
  refused(
      {"]Q", ")Q", Tuple({Text("module"), "N", "N", "N", "K\1"}) + "Q",
       Tuple({Text("storage"), Name("collections", "OrderedDict"), Text("0"), "N", "K\1"}) + "Q",
       Tuple({Text("storage"), Name("torch", "FloatStorage"), Text("0"), "N", Int(-1)}) + "Q",
       Storage("Float", std::string(65, '0'), 4)},
      "it refers to a storage in an unknown form");
  // Each of these makes an object of a class, or runs code that another pickle has registered.
  for (const int code : {0x69, 0x6F, 0x50, 0x81, 0x82, 0x92, 0x93, 0x94, 0x95, 0xFF}) {
    refused({std::string(1, static_cast<char>(code))},
            absl::StrCat("not a valid pickle: instruction ", code, " is unknown"));
  }
}

TEST_F(TorchFileTest, BrokenPicklesAndOtherValuesAreRefused) {
  const std::string tensor = Tensor(four_, 0, {4}, {1});
  const std::string not_items = "it adds items to a value that does not have them";
  for (const auto& [value, problem] : std::vector<std::pair<std::string, std::string>>{
           {"X\xFF\xFF\xFF\xFFw", "it ends too early"},
           {"cposix", "it ends too early"},
           {"\x85", "its stack is empty"},
           {"N(\x85", "its stack is empty"},
           {"Nt", "a mark is missing"},
           {"Na", not_items},
           {"NNa", not_items},
           {"}(Nu", not_items},
           {"h\1", "it uses a value that it has not kept"},
           {"\x8A\x09" + std::string(9, '\1'), "an integer has more than 8 bytes"},
           {"]q\1h\1a", "it must hold a dict with tensors, got a list"},  // it contains itself
           {"}", "got a dict without any"},
           {tensor, "got a tensor"},
           {Dict({{"w", "G12345678"}}), "its name is a str and its value a number or None"},
           {"}K\7" + tensor + "s", "its name is an int and its value a tensor"},
           {Dict({{"w", tensor}, {"w", tensor}}), "tensor 'w': given more than once"}}) {
    ExpectRefused(Open(value).status(), problem);
  }
  // A key that is no string cannot be given as --key.
  EXPECT_THAT(std::string(Open("}K\7}s").status().message()), testing::Not(HasSubstr("--key")));
  ExpectRefused(OpenBytes(ZipOf({{"data.pkl", ""}})).status(), "it ends too early");
}

TEST_F(TorchFileTest, TensorsStayWithinTheirStorage) {
  const int64_t huge = int64_t{1} << 62;
  const auto refused = [this](const std::string& tensor, const std::string& problem) {
    ExpectRefused(Open(Dict({{"w", tensor}})).status(), "tensor 'w': " + problem);
  };
  for (const std::string& tensor :
       {Tensor(four_, 0, {5}, {1}), Tensor(four_, 3, {2}, {1}), Tensor(four_, 4, {}, {}),
        Tensor(four_, 0, {2, 2}, {3, 1}), Tensor(four_, huge, {huge, huge}, {huge, huge}),
        Tensor(four_, 0, {huge, huge}, {huge, huge})}) {
    refused(tensor, "it reaches beyond its storage of 4 numbers");
  }
  refused(Tensor(four_, 0, {1000000, 1000000}, {0, 0}), "it repeats the 4 numbers");
  refused(Tensor(four_, 0, {huge, huge, huge}, {0, 0, 0}), "it repeats the 4 numbers");
  refused(Tensor(four_, 0, {0, 5}, {5, 1}), "it is empty");
  // torch.empty(0) has no numbers in its storage either.
  refused(Tensor(Storage("Float", "0", 0), 0, {0}, {1}), "it is empty");
  refused(Tensor(four_, 0, {2}, {-1}), "its shape or strides are not sizes");
  refused(Tensor(four_, 0, {-1}, {1}), "its shape or strides are not sizes");
  refused(Tensor(four_, 0, std::vector<int64_t>(17, 1), std::vector<int64_t>(17, 1)),
          "its shape or strides are not sizes");
  refused(Tensor(four_, 0, {2}, {1, 1}), "it has a shape and strides of different lengths");
  const std::string no_storage = "its first two arguments are not a storage and an offset";
  refused(Tensor(four_, -1, {2}, {1}), no_storage);
  refused(Tensor(Text("0"), 0, {2}, {1}), no_storage);
  refused(Tensor(Storage("Float", "0", 3), 0, {2}, {1}), "its storage has 16 bytes, expected 3");
  refused(Tensor(Storage("Float", "0", huge), 0, {2}, {1}), "its storage has 16 bytes");
  refused(Tensor(Storage("Float", "2", 4), 0, {2}, {1}), "a/data/2 is missing from it");
}

TEST_F(TorchFileTest, OtherFormatsAreNamed) {
  ExpectRefused(OpenBytes("\x80\x02\x8A\nl\xFC\x9C\x46\xF9 j\xA8P\x19.").status(),
                "torch before 1.6 wrote it");
  ExpectRefused(Open(good_, {}, {{"a/constants.pkl", ""}}).status(), "it is a TorchScript program");
  ExpectRefused(Open(good_, {}, {{"b/data.pkl", ""}}).status(), "must have exactly one data.pkl");
  ExpectRefused(Open(good_, {}, {{"a/byteorder", "big"}}).status(), "a big-endian machine");
  EXPECT_TRUE(Open(good_, {}, {{"a/byteorder", "little"}}).ok());
  EXPECT_TRUE(Open(good_, {}, {{"x/byteorder", "big"}}).ok());  // it is not about this pickle
  ExpectRefused(Open(good_, {}, {{"a/data/0", ""}}).status(), "a/data/0 is there more than once");
  // Python writes this for {} with protocol 4, whose instructions are others.
  ExpectRefused(
      OpenBytes(ZipOf({{"a/data.pkl", "\x80\x04}\x94."}})).status(),
      "it has the pickle protocol 4: save it again without the argument pickle_protocol of "
      "torch.save (the default is 2)");
  EXPECT_THAT(OpenBytes("version https://git-lfs.github.com/spec/v1\n", {"model"}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a pointer of Git LFS")));
  const std::string large((size_t{8} << 20) + 1, '.');
  EXPECT_EQ(OpenBytes(ZipOf({{"a/data.pkl", large}})).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(TorchFileTest, ArchivesWithWideNumbersAreTheSame) {
  const std::vector<std::pair<std::string, std::string>> records = {{"a/data.pkl", Program(good_)},
                                                                    {"a/data/0", data_}};
  for (const bool wide : {false, true}) {
    const std::string whole = ZipOf(records, wide);
    const auto files = OpenBytes(whole);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(files->Read("w")->nbytes(), data_.size());
    for (size_t size = 4; size < whole.size(); ++size) {
      EXPECT_TRUE(absl::IsDataLoss(OpenBytes(whole.substr(0, size)).status())) << size;
    }
    EXPECT_TRUE(absl::IsDataLoss(OpenBytes(whole + "x").status()));
  }
}

TEST_F(TorchFileTest, DamagedDirectoriesAreRefused) {
  const std::string whole = ZipOf({{"a/data.pkl", Program(good_)}, {"a/data/0", data_}});
  const size_t first = whole.find("PK\1\2");
  const size_t second = whole.find("PK\1\2", first + 1);
  const auto refused = [&](size_t offset, const std::string& bytes, const std::string& problem) {
    ExpectRefused(OpenBytes(std::string(whole).replace(offset, bytes.size(), bytes)).status(),
                  problem);
  };
  const std::string broken = "its directory has a broken entry";
  refused(first + 8, BytesOf<uint16_t>(1), "a/data.pkl is compressed or encrypted");
  refused(second + 10, BytesOf<uint16_t>(8), "a/data/0 is compressed or encrypted");
  refused(second + 20, BytesOf<uint32_t>(7), "a/data/0 is compressed or encrypted");
  refused(second + 20, BytesOf<uint32_t>(1 << 20), broken);
  refused(second + 24, BytesOf<uint32_t>(1 << 20), "a/data/0 is compressed or encrypted");
  refused(second + 28, BytesOf<uint16_t>(999), broken);
  refused(second + 42, BytesOf<uint32_t>(1 << 20), broken);
  refused(second + 42, BytesOf<uint32_t>(~0U), broken);  // without a zip64 field
  refused(second + 42, BytesOf<uint32_t>(0), "overlaps another record");
  refused(second + 42, BytesOf<uint32_t>(1), "has no valid header");
  refused(second, "XX", broken);
  refused(whole.size() - 12, BytesOf<uint16_t>(9), "another number of entries");
  refused(whole.size() - 6, BytesOf<uint32_t>(3), "its directory does not fill the file");
}

TEST_F(TorchFileTest, ABoolIsZeroOrOne) {
  data_[3] = '\2';
  const auto files = Open(Dict({{"w", Tensor(Storage("Bool", "0", 16), 0, {16}, {1})}}));
  EXPECT_THAT(files->Read("w").status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("tensor 'w': BOOL data has a byte")));
}

}  // namespace
}  // namespace aft
