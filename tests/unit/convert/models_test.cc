// Imports language models of labml_nn and Hugging Face's GPT-2 from the packages' files, loads them
// as the server does and expects the packages' log-probabilities. Tests every refusal too.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "model/convert/import.h"
#include "model/convert/inspect.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/utf8_character.h"
#include "nlohmann/json.hpp"
#include "tests/parity/goldens.h"
#include "tests/support/collect.h"
#include "tests/support/shown_progress.h"
#include "tests/support/stopped_writer.h"
#include "tests/support/tolerances.h"
#include "tests/unit/convert/harness.h"

namespace aft {
namespace {

using tolerance::kLogProbability;

using Json = nlohmann::json;

// Writes the vocabulary of a labml golden to a file, as its user would, and returns the path.
std::string WriteCharacters(const TempFolder& folder, const std::string& characters) {
  Json list = Json::array();
  for (absl::string_view rest = characters; !rest.empty();) {
    const size_t size = FirstCharacter(rest).size;
    list.push_back(std::string(rest.substr(0, size)));
    rest.remove_prefix(size);
  }
  WriteBytes(folder.File("vocabulary.json"), list.dump());
  return folder.File("vocabulary.json");
}

class LabmlModelTest : public testing::TestWithParam<std::string> {
 protected:
  LabmlModelTest() : golden_(ReadGoldens(GetParam())) {
    options_.chars_path = WriteCharacters(folder_, golden_.metadata.at("characters"));
  }

  TempFolder folder_;
  SafetensorsFile golden_;
  LabmlOptions options_;
};

TEST_P(LabmlModelTest, GivesThePackagesLogProbabilities) {
  const std::string dir = folder_.File("out");
  const Checkpoint checkpoint = WriteAndRead(ImportLabml(golden_.tensors, options_), dir);
  EXPECT_EQ(checkpoint.config.position,
            GetParam() == "labml_lm" ? PositionKind::kSinusoidal : PositionKind::kLearned);
  EXPECT_EQ(checkpoint.config.n_layers, GetParam() == "labml_lm" ? 2 : 1);
  EXPECT_EQ(checkpoint.config.activation, Activation::kRelu);
  EXPECT_EQ(checkpoint.config.mixer.window, 8);
  EXPECT_EQ(checkpoint.config.max_seq_len, 64);
  const TensorMap cases = ReadGoldens(GetParam() + ".cases").tensors;
  const std::vector<int32_t> tokens = Ids(cases.at("tokens"));
  EXPECT_LE(ScoreDistance(dir, tokens, cases.at("expected")), kLogProbability);
  EXPECT_LE(ScoreDistance(dir, tokens, cases.at("package")), kLogProbability);
  EXPECT_LE(ScoreDistance(dir, tokens, cases.at("expected"), 1), kLogProbability);

  const auto tokenizer = LoadTokenizer("chars", dir, 40);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::string text;
  const Json characters = Json::parse(ReadBytes(options_.chars_path));
  for (const int32_t id : tokens) text += characters.at(static_cast<size_t>(id)).get<std::string>();
  EXPECT_EQ(*(*tokenizer)->Encode(text), tokens);
}

TEST_P(LabmlModelTest, RefusesTheFirstPositionWithoutABias) {
  const std::string dir = folder_.File("out");
  WriteAndRead(ImportLabml(golden_.tensors, options_), dir);
  const LoadedModel model = Load(dir, 65);
  EXPECT_EQ(model.runner->info().max_seq_len, 64);
  ASSERT_TRUE(model.runner->BindSlot(0, NewSequence(), {}).ok());
  StepRow row;
  row.slot = 0;
  row.tokens.assign(64, 1);
  const auto longest = model.runner->Submit({{row}});
  ASSERT_TRUE(longest.ok()) << longest.status();
  ASSERT_TRUE(Collect(*model.runner, *longest).ok());
  row.tokens.push_back(1);
  EXPECT_THAT(model.runner->Submit({{row}}), Refused("beyond max_seq_len 64"));
}

TEST_P(LabmlModelTest, NamesTheFaultyTensor) {
  const auto import = [&](const TensorMap& tensors) {
    return ImportLabml(tensors, options_).status();
  };
  const std::string layer = "encoder.layers.0.";
  ExpectRefused(golden_.tensors, import,
                {{"src_embed.linear.weight", {}, "is missing"},
                 {"src_embed.weight", at::zeros({40, 32}), "belongs to the embedding without"},
                 {"src_embed.positional_encodings", {}, "is missing"},
                 {"src_embed.positional_encodings", at::zeros({63, 1, 32}),
                  "has 63 rows, but pos_bias has 64"},
                 {layer + "self_attn.key.weight", at::zeros({32, 31}), "has shape [32, 31]"},
                 {layer + "feed_forward.layer2.weight", at::zeros({32, 65}),
                  "has shape [32, 65], expected [32, 64]"},
                 {layer + "norm_ff.bias", {}, "is missing"},
                 {layer + "src_attn.query.weight", at::zeros({32, 32}), "has no place"},
                 {"generator.projection.bias", {}, "is missing"},
                 {"generator.projection.weight", at::zeros({41, 32}),
                  "has shape [41, 32], expected [40, 32]"}});
  TensorMap no_layers = golden_.tensors;
  no_layers.erase(no_layers.lower_bound("encoder.layers."), no_layers.lower_bound("encoder.norm"));
  EXPECT_THAT(import(no_layers),
              Refused("tensor 'encoder.layers.0.self_attn.query.weight': is missing"));
}

TEST_P(LabmlModelTest, NamesWhatIsWrongWithTheCharacters) {
  LabmlOptions options = options_;
  options.chars_path.clear();
  EXPECT_THAT(ImportLabml(golden_.tensors, options),
              Refused("the vocabulary has 40 tokens: its characters must be given (--chars)"));
  options.chars_path = folder_.File("none.json");
  EXPECT_EQ(ImportLabml(golden_.tensors, options).status().code(), absl::StatusCode::kNotFound);
  options.chars_path = folder_.File("short.json");
  WriteBytes(options.chars_path, R"(["a", "b"])");
  EXPECT_THAT(ImportLabml(golden_.tensors, options),
              Refused("short.json: has 2 characters, but the embedding has 40 rows"));
  WriteBytes(options.chars_path, R"(["a", "bc"])");
  EXPECT_THAT(ImportLabml(golden_.tensors, options),
              Refused("short.json: token 1: must be one character"));
}

TEST_P(LabmlModelTest, AWindowBeyondTheTableCoversAllOfIt) {
  TensorMap state = golden_.tensors;
  std::erase_if(state, [](const auto& entry) { return absl::EndsWith(entry.first, "local_mask"); });
  options_.window = 100;
  const auto import = ImportLabml(state, options_);
  ASSERT_TRUE(import.ok()) << import.status();
  EXPECT_EQ(import->config.mixer.window, 64);
}

INSTANTIATE_TEST_SUITE_P(Goldens, LabmlModelTest, testing::Values("labml_lm", "labml_lm_learned"),
                         [](const auto& param_info) { return param_info.param; });

TEST(LabmlLayersTest, AllLayersMustAgree) {
  const SafetensorsFile golden = ReadGoldens("labml_lm");
  const TempFolder folder;
  LabmlOptions options;
  options.chars_path = WriteCharacters(folder, golden.metadata.at("characters"));
  const std::string second = "encoder.layers.1.self_attn.";
  const auto import = [&](const TensorMap& tensors) {
    return ImportLabml(tensors, options).status();
  };
  const at::Tensor narrow = at::ones({64, 64}, at::kFloat).tril(2).triu(-2).to(at::kBool);
  ExpectRefused(
      golden.tensors, import,
      {{second + "local_mask", narrow, "has a window of 3, but layer 0's is 8"},
       {second + "pos_bias", at::zeros({63, 63}), "has shape [63, 63], expected [64, 64]"},
       {"encoder.layers.1.norm_self_attn.weight", {}, "is missing"}});
  TensorMap no_bias = golden.tensors;
  for (const char* name : {"query.bias", "key.bias", "value.bias"}) no_bias.erase(second + name);
  EXPECT_THAT(import(no_bias),
              Refused("tensor '" + second + "query.bias': must be there in all layers"));
}

class Gpt2Test : public testing::Test {
 protected:
  Gpt2Test()
      : cases_(ReadGoldens("gpt2.cases")),
        config_(Json::parse(ReadBytes(kGolden + "/config.json"))),
        weights_(ReadGoldens("gpt2/model").tensors) {
    std::filesystem::copy(kGolden, in_);
    block_local_.block_local = true;
    block_local_.block_size = 8;
  }

  const at::Tensor& Expected(const std::string& name) const { return cases_.tensors.at(name); }
  absl::StatusOr<Import> WithConfig(const std::string& key, const Json& value) {
    Json config = config_;
    config[key] = value;
    WriteBytes(in_ + "/config.json", config.dump());
    return ImportGpt2(in_, {});
  }
  absl::StatusOr<Import> WithWeights(const TensorMap& weights) {
    AFT_CHECK(WriteSafetensors(in_ + "/model.safetensors", weights).ok());
    return ImportGpt2(in_, {});
  }

  // Expects these log-probabilities from the checkpoint at out_. The tokens of the text are
  // generated from each position in `generated_from` on.
  void ExpectLogProbabilities(const std::string& name, const std::vector<int64_t>& generated_from) {
    const std::vector<int32_t> tokens = Ids(Expected("tokens"));
    for (const int64_t first : generated_from) {
      const int64_t position = std::min(first, static_cast<int64_t>(tokens.size()));
      for (const char* source : {".expected", ".package"}) {
        EXPECT_LE(ScoreDistance(out_, tokens, Expected(name + source), position), kLogProbability)
            << source << " from " << first;
      }
    }
  }

  static constexpr int64_t kWhole = INT64_MAX;
  const std::string kGolden = "tests/parity/goldens/gpt2";
  const SafetensorsFile cases_;
  const Json config_;
  const TensorMap weights_;
  const TempFolder folder_;
  const std::string in_ = folder_.File("in");
  const std::string out_ = folder_.File("out");
  AttentionOptions block_local_;
};

TEST_F(Gpt2Test, GivesThePackagesLogProbabilities) {
  const Checkpoint checkpoint = WriteAndRead(ImportGpt2(in_, {}), out_);
  EXPECT_EQ(checkpoint.config.mixer.kind, MixerKind::kDotProduct);
  EXPECT_EQ(checkpoint.config.mixer.heads, 4);
  EXPECT_EQ(checkpoint.config.max_seq_len, 128);
  EXPECT_TRUE(checkpoint.config.tie_embeddings);
  ExpectLogProbabilities("dot_product", {1, kWhole});
}

TEST_F(Gpt2Test, GivesThePackagesLogProbabilitiesWithBlockLocalAttention) {
  const Checkpoint checkpoint = WriteAndRead(ImportGpt2(in_, block_local_), out_);
  EXPECT_EQ(checkpoint.config.mixer.kind, MixerKind::kBlockLocal);
  EXPECT_EQ(checkpoint.config.mixer.block_size, 8);
  EXPECT_TRUE(checkpoint.config.mixer.global_token);
  EXPECT_FALSE(checkpoint.config.mixer.full_decode);
  // Here decode equals prefill. In the package it does not.
  ExpectLogProbabilities("block_local", {17, kWhole});
}

TEST_F(Gpt2Test, GeneratesAsThePackageDoesWithFullDecode) {
  block_local_.full_decode = true;
  WriteAndRead(ImportGpt2(in_, block_local_), out_);
  ExpectLogProbabilities("generated", {17});
}

TEST_F(Gpt2Test, CopiesTheTokenizer) {
  WriteAndRead(ImportGpt2(in_, {}), out_);
  const auto tokenizer = LoadTokenizer("bpe", out_, 260);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->eos_id(), 259);
  EXPECT_EQ(*(*tokenizer)->Encode(cases_.metadata.at("text")), Ids(Expected("tokens")));
}

// Without a tokenizer.json, config.json and then tokenizer_config.json say what ends a text.
TEST_F(Gpt2Test, TheEndOfTextMayHaveAnyName) {
  Json words = Json::parse(ReadBytes(in_ + "/vocab.json"));
  words.erase("<|endoftext|>");
  words["</s>"] = 259;
  WriteBytes(in_ + "/vocab.json", words.dump());
  int folders = 0;
  const auto expect_end = [&](const absl::StatusOr<Import>& import) {
    const std::string dir = absl::StrCat(out_, folders++);
    WriteAndRead(import, dir);
    const auto tokenizer = LoadTokenizer("bpe", dir, 260);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->eos_id(), 259);
    EXPECT_EQ((*tokenizer)->TokenBytes(259), "");
  };
  expect_end(ImportGpt2(in_, {}));
  WriteBytes(in_ + "/tokenizer_config.json", R"({"eos_token": "</s>"})");
  expect_end(WithConfig("eos_token_id", nullptr));
  expect_end(WithConfig("eos_token_id", 50256));  // GPT-2's default has no meaning here
  EXPECT_THAT(WithConfig("eos_token_id", 258),
              Refused("must not be a part or a result of a merge; " + in_ +
                      "/config.json: eos_token_id names it as the end of text"));
  EXPECT_THAT(WithConfig("eos_token_id", {1, 2}), Refused("eos_token_id: must be one token's id"));
}

// transformers' slow tokenizers read more than the two files.
TEST_F(Gpt2Test, RefusesWhatOtherFilesSayAboutTheTokens) {
  const std::string added = in_ + "/added_tokens.json";
  WriteBytes(added, R"({"<|endoftext|>": 259})");
  EXPECT_TRUE(ImportGpt2(in_, {}).ok());
  for (const char* token : {R"({"<sp1>": 260})", R"({"<sp1>": 259})", R"({"<sp1>": "x"})"}) {
    WriteBytes(added, token);
    EXPECT_THAT(ImportGpt2(in_, {}),
                Refused(added + ": token '<sp1>' is not in vocab.json: save the tokenizer as"));
  }
  std::filesystem::remove(added);
  const std::string config = in_ + "/tokenizer_config.json";
  for (const char* key : {"add_prefix_space", "add_bos_token"}) {
    WriteBytes(config, Json{{key, false}}.dump());
    EXPECT_TRUE(ImportGpt2(in_, {}).ok());
    WriteBytes(config, Json{{key, true}}.dump());
    EXPECT_THAT(ImportGpt2(in_, {}), Refused(absl::StrCat(config, ": ", key, ": only false")));
  }
}

TEST_F(Gpt2Test, AcceptsNamesWithoutPrefixAndBuffersAndTheTiedHead) {
  TensorMap other;
  for (const auto& [name, tensor] : weights_) {
    other[name.substr(std::string("transformer.").size())] = tensor;
  }
  const auto prefixed = ImportGpt2(in_, {});
  ASSERT_TRUE(prefixed.ok()) << prefixed.status();
  other["h.0.attn.bias"] = at::ones({1, 1, 128, 128}, at::kBool);
  other["h.1.attn.masked_bias"] = at::ones({}, at::kFloat);
  other["lm_head.weight"] = other.at("wte.weight").clone();
  const auto plain = WithWeights(other);
  ASSERT_TRUE(plain.ok()) << plain.status();
  ASSERT_EQ(plain->tensors.size(), prefixed->tensors.size());
  for (const auto& [name, tensor] : prefixed->tensors) {
    EXPECT_TRUE(tensor.make()->equal(*plain->tensors.at(name).make())) << name;
  }
}

TEST_F(Gpt2Test, TakesTheActivation) {
  for (const auto& [name, activation] : {std::pair("gelu_new", Activation::kGeluTanh),
                                         {"gelu_fast", Activation::kGeluTanh},
                                         {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                         {"gelu", Activation::kGelu},
                                         {"relu", Activation::kRelu}}) {
    const auto import = WithConfig("activation_function", name);
    ASSERT_TRUE(import.ok()) << import.status();
    EXPECT_EQ(import->config.activation, activation) << name;
  }
}

TEST_F(Gpt2Test, TakesTheEpsilonOfTheNorms) {
  const auto import = WithConfig("layer_norm_epsilon", 1e-6);
  ASSERT_TRUE(import.ok()) << import.status();
  EXPECT_EQ(import->config.norm_eps, 1e-6F);
}

TEST_F(Gpt2Test, TakesTheWidthOfTheFeedForward) {
  TensorMap narrow = weights_;
  for (const std::string layer : {"transformer.h.0.mlp.", "transformer.h.1.mlp."}) {
    narrow[layer + "c_fc.weight"] = at::zeros({32, 96});
    narrow[layer + "c_fc.bias"] = at::zeros({96});
    narrow[layer + "c_proj.weight"] = at::zeros({96, 32});
  }
  EXPECT_THAT(WithWeights(narrow), Refused("has shape [32, 96], expected [32, 128]"));
  const auto import = WithConfig("n_inner", 96);
  ASSERT_TRUE(import.ok()) << import.status();
  EXPECT_EQ(import->config.d_ff, 96);
}

TEST_F(Gpt2Test, KeepsAHeadThatIsNotTied) {
  TensorMap other = weights_;
  other["lm_head.weight"] = at::ones({260, 32});
  EXPECT_THAT(WithWeights(other), Refused("tensor 'lm_head.weight': differs"));
  const auto untied = WithConfig("tie_word_embeddings", false);
  ASSERT_TRUE(untied.ok()) << untied.status();
  EXPECT_FALSE(untied->config.tie_embeddings);
  EXPECT_TRUE(untied->tensors.at("head.weight").make()->equal(other.at("lm_head.weight")));
  EXPECT_THAT(WithWeights(weights_), Refused("tensor 'lm_head.weight': is missing"));
}

TEST_F(Gpt2Test, NamesTheKeyThatItDoesNotSupport) {
  struct Bad {
    const char* key;
    Json value;
    const char* problem;
  };
  for (const Bad& bad :
       std::vector<Bad>{{"model_type", "gptj", "must be gpt2, got 'gptj'"},
                        {"activation_function", "silu", "must be gelu_new"},
                        {"scale_attn_weights", false, "only true is supported"},
                        {"scale_attn_by_inverse_layer_idx", true, "only false is supported"},
                        {"add_cross_attention", true, "only false is supported"},
                        {"tie_word_embeddings", "yes", "must be true or false"},
                        {"n_head", 0, "must be an integer from 1 to 2147483647, got 0"},
                        {"n_embd", "32", "must be an integer from 1"},
                        {"n_layer", nullptr, "must be an integer from 1 to 2147483647, got null"},
                        {"layer_norm_epsilon", "x", "must be a number"}}) {
    EXPECT_THAT(WithConfig(bad.key, bad.value),
                Refused(absl::StrCat("config.json: ", bad.key, ": ", bad.problem)));
  }
  Json config = config_;
  config.erase("n_positions");
  WriteBytes(in_ + "/config.json", config.dump());
  EXPECT_THAT(ImportGpt2(in_, {}), Refused("config.json: n_positions: missing"));
  WriteBytes(in_ + "/config.json", "[]");
  EXPECT_THAT(ImportGpt2(in_, {}), Refused("config.json: must be an object"));
  WriteBytes(in_ + "/config.json", "{");
  EXPECT_THAT(ImportGpt2(in_, {}), Refused("config.json: not valid JSON"));
  EXPECT_THAT(WithConfig("n_head", 5), Refused("config.json: mixer.heads: must divide"));
  EXPECT_THAT(WithConfig("n_layer", 2'000'000'000), Refused("config.json: n_layers: must be"));
}

TEST_F(Gpt2Test, NamesTheTensorThatItDoesNotSupport) {
  const std::string layer = "transformer.h.";
  ExpectRefused(weights_,
                [this](const TensorMap& weights) { return WithWeights(weights).status(); },
                {{layer + "1.ln_2.bias", {}, "is missing"},
                 {layer + "0.mlp.c_fc.weight", at::zeros({128, 32}),
                  "has shape [128, 32], expected [32, 128]"},
                 {layer + "2.ln_1.bias", at::zeros({32}), "has no place"}});
}

TEST_F(Gpt2Test, NamesTheMissingFiles) {
  std::filesystem::remove(in_ + "/merges.txt");
  EXPECT_EQ(ImportGpt2(in_, {}).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::remove(in_ + "/vocab.json");
  EXPECT_THAT(ImportGpt2(in_, {}), Refused("the vocabulary has 260 tokens: needs " + in_ +
                                           "/tokenizer.json, or vocab.json"));
  std::filesystem::remove(in_ + "/model.safetensors");
  EXPECT_EQ(ImportGpt2(in_, {}).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::remove(in_ + "/config.json");
  EXPECT_EQ(ImportGpt2(in_, {}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Gpt2Test, WritesAllOrNothing) {
  const auto import = ImportGpt2(in_, {});
  ASSERT_TRUE(import.ok()) << import.status();
  std::filesystem::create_directory(out_);
  ASSERT_TRUE(WriteImport(out_ + "/", *import).ok());  // an empty folder may exist
  EXPECT_EQ(WriteImport(out_, *import).code(), absl::StatusCode::kAlreadyExists);
  Import incomplete = *import;
  incomplete.tensors.erase("norm.bias");
  EXPECT_FALSE(WriteImport(folder_.File("other"), incomplete).ok());
  EXPECT_FALSE(WriteImport(folder_.File("no/such/place"), *import).ok());
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_TRUE(entry.path() == in_ || entry.path() == out_) << entry.path();
  }
}

TEST_F(Gpt2Test, ShowsItsProgress) {
  const auto import = ImportGpt2(in_, {});
  ASSERT_TRUE(import.ok()) << import.status();
  ShownProgress shown;
  ASSERT_EQ(WriteImport(out_, *import, &shown.progress), absl::OkStatus());
  shown.ExpectComplete();
}

TEST_F(Gpt2Test, RemovesTheFolderOfAKilledRun) {
  const auto import = ImportGpt2(in_, {});
  ASSERT_TRUE(import.ok()) << import.status();
  const auto entries = [this] {
    return std::distance(std::filesystem::directory_iterator(folder_.path()), {});
  };
  const auto before = entries();
  StoppedWriter killed([&] { WriteImport(out_, *import).IgnoreError(); });
  ASSERT_TRUE(WriteImport(out_, *import).ok());
  EXPECT_EQ(entries(), before + 2) << "the folder of a running process stays";
  killed.Kill();
  std::filesystem::remove_all(out_);
  ASSERT_TRUE(WriteImport(out_, *import).ok());
  EXPECT_EQ(entries(), before + 1);
}

// Two layers with keys and values of 32 floats take 512 bytes per token. Only alignment adds more.
TEST_F(Gpt2Test, InspectReportsHowTheStateGrows) {
  WriteAndRead(ImportGpt2(in_, {}), out_);
  const auto inspection = Inspect(out_);
  ASSERT_TRUE(inspection.ok()) << inspection.status();
  const int64_t per_token = inspection->at("state_bytes_per_token");
  const int64_t parameters = inspection->at("parameters");
  EXPECT_EQ(per_token, 2 * 2 * 32 * 4);
  EXPECT_GE(inspection->at("state_bytes_per_sequence"), 128 * per_token);
  EXPECT_LT(inspection->at("state_bytes_per_sequence"), 2 * 128 * per_token);
  EXPECT_EQ(parameters,
            260 * 32 + 128 * 32 +
                2 * (4 * 32 + 32 * 96 + 96 + 32 * 32 + 32 + 32 * 128 + 128 + 128 * 32 + 32) + 64);
  EXPECT_EQ(inspection->at("weight_bytes"), 4 * parameters);
  EXPECT_EQ(inspection->at("mixer")["kind"], "dot_product");
  EXPECT_EQ(inspection->at("tokenizer")["vocab_size"], 260);
  EXPECT_EQ(inspection->at("tokenizer")["eos_id"], 259);
}

TEST_F(Gpt2Test, InspectNamesWhatIsWrong) {
  WriteAndRead(ImportGpt2(in_, {}), out_);
  std::filesystem::remove(out_ + "/merges.txt");
  EXPECT_EQ(Inspect(out_).status().code(), absl::StatusCode::kNotFound);
  TensorMap tensors = ReadSafetensors(out_ + "/model.safetensors")->tensors;
  tensors.erase("norm.bias");
  ASSERT_TRUE(WriteSafetensors(out_ + "/model.safetensors", tensors).ok());
  const absl::Status status = Inspect(out_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), out_ + "/model.safetensors: norm.bias is missing");
  EXPECT_EQ(Inspect(in_).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Inspect(folder_.File("none")).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace aft
