// Imports GPT-2 from a folder as transformers writes it today: BF16 weights in shards, and
// tokenizer.json without vocab.json and merges.txt (tests/parity/make_hub_goldens.py).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ATen/ops/zeros.h"
#include "gtest/gtest.h"
#include "model/config/tensors.h"
#include "model/convert/import.h"
#include "model/tokenizer/tokenizers.h"
#include "nlohmann/json.hpp"
#include "tests/parity/goldens.h"
#include "tests/support/tolerances.h"
#include "tests/unit/convert/harness.h"

namespace aft {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using tolerance::kLogProbability;

constexpr char kHub[] = "tests/parity/goldens/gpt2_hub";

class HubTest : public testing::Test {
 protected:
  HubTest() { std::filesystem::copy(kHub, in_); }

  // Replaces the shards by one file with the same weights as `type`. Returns the weights.
  TensorMap OneFile(at::ScalarType type) {
    TensorMap weights;
    const auto files = WeightFiles::OpenFolder(kHub);
    AFT_CHECK(files.ok());
    for (const auto& [name, entry] : files->entries()) weights[name] = files->Read(name)->to(type);
    std::filesystem::remove(in_ + "/model.safetensors.index.json");
    AFT_CHECK(WriteSafetensors(in_ + "/model.safetensors", weights).ok());
    return weights;
  }
  absl::StatusOr<Import> WithConfig(const std::string& key, const Json& value) {
    Json config = Json::parse(ReadBytes(in_ + "/config.json"));
    config[key] = value;
    WriteBytes(in_ + "/config.json", config.dump());
    return ImportGpt2(in_, {});
  }
  // Gives the vocabulary a second special token, 260, and no generation_config.json, which comes
  // before config.json.
  void AddSpecialToken() {
    std::filesystem::remove(in_ + "/generation_config.json");
    Json words = Json::parse(ReadBytes(in_ + "/tokenizer.json"));
    Json token = words["added_tokens"][0];
    token["id"] = 260;
    token["content"] = "<|im_end|>";
    words["added_tokens"].push_back(token);
    WriteBytes(in_ + "/tokenizer.json", words.dump());
    TensorMap weights = OneFile(at::kFloat);
    weights["transformer.wte.weight"] = at::zeros({261, 32});
    ASSERT_TRUE(WriteSafetensors(in_ + "/model.safetensors", weights).ok());
    ASSERT_TRUE(WithConfig("vocab_size", 261).ok());
  }
  // The token that ends a text where config.json has this eos_token_id.
  int32_t EosWith(const Json& id) {
    const std::string dir = out_ + std::to_string(folders_++);
    WriteAndRead(WithConfig("eos_token_id", id), dir);
    return (*LoadTokenizer("bpe", dir, 261))->eos_id();
  }

  int folders_ = 0;
  const SafetensorsFile cases_ = ReadGoldens("gpt2_hub.cases");
  const TempFolder folder_;
  const std::string in_ = folder_.File("in");
  const std::string out_ = folder_.File("out");
};

TEST_F(HubTest, GivesThePackagesLogProbabilities) {
  const Checkpoint checkpoint = WriteAndRead(ImportGpt2(in_, {}), out_);
  EXPECT_EQ(checkpoint.config.mixer.kind, MixerKind::kDotProduct);
  const std::vector<int32_t> tokens = Ids(cases_.tensors.at("tokens"));
  EXPECT_LE(ScoreDistance(out_, tokens, cases_.tensors.at("package")), kLogProbability);
  EXPECT_LE(ScoreDistance(out_, tokens, cases_.tensors.at("package"), 1), kLogProbability);
  const auto tokenizer = LoadTokenizer("bpe", out_, 260);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*(*tokenizer)->Encode(cases_.metadata.at("text")), tokens);
  EXPECT_EQ((*tokenizer)->eos_id(), 259);
}

// The imported tensors have the format of the source and the same number of bytes. The model is
// loaded in that format if the CPU has it, and otherwise in fp32.
TEST_F(HubTest, KeepsItsFormat) {
  struct Format {
    at::ScalarType type;
    const char* dtype;
    Number number;
    const char* loaded;
  };
  for (const Format& format : {Format{at::kBFloat16, "BF16", Number::kBf16, "bf16"},
                               Format{at::kHalf, "F16", Number::kFp16, "fp32"},
                               Format{at::kFloat, "F32", Number::kFp32, "fp32"}}) {
    const std::string dir = out_ + format.dtype;
    const TensorMap source = OneFile(format.type);
    const Checkpoint read = WriteAndRead(ImportGpt2(in_, {}), dir);
    const auto file = OpenCheckpoint(dir);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->weight_format, format.number);
    LoadOptions options;
    options.checkpoint_dir = dir;
    options.slots = 1;
    const auto model = LoadModel(options);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->runner->info().weight_format, format.loaded);
    int64_t bytes = 0;
    for (const auto& [name, tensor] : source) bytes += static_cast<int64_t>(tensor.nbytes());
    EXPECT_EQ(file->weight_bytes, bytes);
    const TensorMap stored = ReadSafetensors(dir + "/model.safetensors")->tensors;
    for (const auto& [name, tensor] : stored) {
      EXPECT_EQ(tensor.scalar_type(), format.type) << name;
      EXPECT_TRUE(tensor.to(at::kFloat).equal(read.tensors.at(name))) << name;
    }
    // The values are those of the source bit for bit. Weights of linear layers are transposed.
    EXPECT_TRUE(stored.at("layers.1.ffn.up.weight")
                    .equal(source.at("transformer.h.1.mlp.c_fc.weight").t()));
    EXPECT_TRUE(stored.at("norm.bias").equal(source.at("transformer.ln_f.bias")));
  }
}

// The model is loaded in fp32, because fp32 holds the values of each format exactly.
TEST_F(HubTest, MatricesOfSeveralFormatsKeepThemAndAreServedInFp32) {
  TensorMap weights = OneFile(at::kBFloat16);
  const std::string name = "transformer.h.0.mlp.c_fc.weight";
  weights[name] = weights.at(name).to(at::kHalf);
  ASSERT_TRUE(WriteSafetensors(in_ + "/model.safetensors", weights).ok());
  WriteAndRead(ImportGpt2(in_, {}), out_);
  EXPECT_EQ(OpenCheckpoint(out_)->weight_format, Number::kFp32);
  const TensorMap stored = ReadSafetensors(out_ + "/model.safetensors")->tensors;
  EXPECT_EQ(stored.at("layers.0.ffn.up.weight").scalar_type(), at::kHalf);
  EXPECT_EQ(stored.at("layers.1.ffn.up.weight").scalar_type(), at::kBFloat16);
  // Vectors and rows by position do not count: they are fp32 in a model of any format.
  weights[name] = weights.at("transformer.h.1.mlp.c_fc.weight");
  weights["transformer.wpe.weight"] = weights.at("transformer.wpe.weight").to(at::kFloat);
  ASSERT_TRUE(WriteSafetensors(in_ + "/model.safetensors", weights).ok());
  WriteAndRead(ImportGpt2(in_, {}), out_ + "2");
  EXPECT_EQ(OpenCheckpoint(out_ + "2")->weight_format, Number::kBf16);
}

TEST_F(HubTest, ReportsTheTensorsThatItReadMappedAndLeftOut) {
  TensorMap weights = OneFile(at::kHalf);
  weights["transformer.h.0.attn.bias"] = at::zeros({1, 1, 128, 128}, at::kBool);
  weights["lm_head.weight"] = weights.at("transformer.wte.weight").clone();
  ASSERT_TRUE(WriteSafetensors(in_ + "/model.safetensors", weights).ok());
  const auto import = ImportGpt2(in_, {});
  ASSERT_TRUE(import.ok()) << import.status();
  ASSERT_EQ(import->mapped.size(), weights.size());
  for (const MappedTensor& tensor : import->mapped) {
    EXPECT_EQ(tensor.shape, weights.at(tensor.name).sizes().vec());
    EXPECT_TRUE(import->tensors.count(tensor.target) == 1 || tensor.target.front() == '(')
        << tensor.name;
  }
  const std::string text = ImportText(*import);
  for (const std::string& line :
       {"read          " + in_ + "/config.json\n", "read          " + in_ + "/model.safetensors\n",
        "read          " + in_ + "/tokenizer.json\n",
        std::string("transformer.h.1.mlp.c_fc.weight     F16 [32, 128]          ->  "
                    "layers.1.ffn.up.weight  F16 [128, 32]\n"),
        std::string("lm_head.weight                      F16 [260, 32]          ->  "
                    "(embed.weight: tied)\n"),
        std::string("transformer.h.0.attn.bias           BOOL [1, 1, 128, 128]  ->  "
                    "(the causal mask)\n"),
        std::string("\ntensors       30 read, 108800 bytes; 28 made, 75776 bytes; "
                    "2 left: those with a reason in ( )\n")}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_EQ(ImportText(*Quantized("model/zoo/austen-aft-local", Number::kBf16)), "");
}

TEST_F(HubTest, ErrorsNameIndexTensorShardAndShapes) {
  EXPECT_THAT(
      WithConfig("n_embd", 64),
      Refused(in_ + "/model.safetensors.index.json: tensor 'transformer.wte.weight': has "
                    "shape [260, 32], expected [260, 64] (in model-00003-of-00003.safetensors)"));
}

TEST_F(HubTest, NamesTenTensorsThatHaveNoPlaceAndCountsTheRest) {
  TensorMap weights = OneFile(at::kFloat);
  for (int i = 0; i < 25; ++i) weights["zz" + std::to_string(i + 10)] = at::zeros({1});
  ASSERT_TRUE(WriteSafetensors(in_ + "/model.safetensors", weights).ok());
  EXPECT_THAT(ImportGpt2(in_, {}), Refused("'zz18', 'zz19' and 15 more: have no place"));
}

TEST_F(HubTest, TheEndOfTextOfTheConfigIsUsed) {
  AddSpecialToken();
  EXPECT_EQ(EosWith(260), 260);
  EXPECT_EQ(EosWith(259), 259);
  EXPECT_EQ(EosWith({260}), 260);
  EXPECT_EQ(EosWith(50256), 259);  // a meaningless default: the tokenizer's own counts
  EXPECT_EQ(EosWith(nullptr), 259);
  EXPECT_THAT(WithConfig("eos_token_id", {259, 260}),
              Refused("config.json: eos_token_id: must be one token's id, got an array"));
  EXPECT_THAT(WithConfig("eos_token_id", "x"), Refused("eos_token_id: must be one token's id"));
  ASSERT_TRUE(WithConfig("eos_token_id", nullptr).ok());
  WriteBytes(in_ + "/tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  EXPECT_EQ(EosWith(nullptr), 260);
  std::filesystem::remove(in_ + "/tokenizer_config.json");
  EXPECT_EQ(EosWith(nullptr), 259);
}

// The package's generate() does not read config.json where there is this file.
TEST_F(HubTest, TheEndOfTextOfTheGenerationConfigComesFirst) {
  AddSpecialToken();
  const auto generation = [this](const std::string& ids) {
    WriteBytes(in_ + "/generation_config.json", "{\"eos_token_id\": " + ids + "}");
  };
  for (const char* ids : {"260", "[260]"}) {
    generation(ids);
    EXPECT_EQ(EosWith(259), 260);
    EXPECT_EQ(EosWith(nullptr), 260);
  }
  for (const char* ids : {"null", "50256", "[259, 260]", "[260, 259]"}) {
    generation(ids);
    EXPECT_EQ(EosWith(260), 260) << ids;
  }
  EXPECT_THAT(WithConfig("eos_token_id", 50256),
              Refused(in_ + "/generation_config.json: eos_token_id: must be one token's id"));
  generation("258");
  EXPECT_THAT(ImportGpt2(in_, {}),
              Refused("; " + in_ + "/generation_config.json: eos_token_id names it"));
}

// The server would refuse this tokenizer, so no file is written.
TEST_F(HubTest, WritesNothingThatCannotBeServed) {
  auto import = ImportGpt2(in_, {});
  ASSERT_TRUE(import.ok()) << import.status();
  import->files[kTokenizerConfigFileName] = R"({"eos_token": "!"})";
  EXPECT_THAT(WriteImport(out_, *import), Refused("token '!': is the token of a single byte"));
  EXPECT_FALSE(std::filesystem::exists(out_));
}

// GPT-2's default is such a token if a vocabulary of another language is as large as GPT-2's.
TEST_F(HubTest, AnOrdinaryTokenThatTheConfigNamesIsRefusedBeforeAnythingIsWritten) {
  std::filesystem::remove(in_ + "/generation_config.json");
  const std::string named = "; " + in_ + "/config.json: eos_token_id names it as the end of text";
  EXPECT_THAT(WithConfig("eos_token_id", 0),  // "!", a byte
              Refused("token '!': is the token of a single byte" + named));
  EXPECT_THAT(WithConfig("eos_token_id", 258),  // " the", by merges
              Refused("\u0120the' must not be a part or a result of a merge" + named));
}

TEST_F(HubTest, TheTokenizersErrorsNameItsFileAndField) {
  Json words = Json::parse(ReadBytes(in_ + "/tokenizer.json"));
  words["normalizer"] = {{"type", "NFKC"}};
  WriteBytes(in_ + "/tokenizer.json", words.dump());
  EXPECT_THAT(ImportGpt2(in_, {}), Refused(in_ + "/tokenizer.json: normalizer.type: must be null"));
}

}  // namespace
}  // namespace aft
