// Compares imports of RoBERTa and BERT with transformers: with their own attention and with LSG's
// block-local attention, at the lengths of the goldens, and with hidden keys
// (tests/parity/references/encoders.py).

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "model/convert/import.h"
#include "nlohmann/json.hpp"
#include "tests/parity/goldens.h"
#include "tests/support/tolerances.h"
#include "tests/unit/convert/harness.h"

namespace aft {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

class EncoderImportTest : public testing::TestWithParam<const char*> {
 protected:
  EncoderImportTest() {
    std::filesystem::copy(absl::StrCat("tests/parity/goldens/", GetParam()), in_);
  }

  absl::Status WithConfig(const std::string& key, const Json& value) const {
    Json config = Json::parse(ReadBytes(in_ + "/config.json"));
    config[key] = value;
    if (value.is_discarded()) config.erase(key);
    const std::string dir = absl::StrCat(in_, ".", key);
    std::filesystem::remove_all(dir);
    std::filesystem::copy(in_, dir);
    WriteBytes(dir + "/config.json", config.dump());
    return ImportBert(dir, {}).status();
  }

  const SafetensorsFile cases_ = ReadGoldens(absl::StrCat(GetParam(), ".cases"));
  const TempFolder folder_;
  const std::string in_ = folder_.File("in");
  const std::string out_ = folder_.File("out");
};

TEST_P(EncoderImportTest, GivesThePackagesVectors) {
  const std::vector<int32_t> tokens = Ids(cases_.tensors.at("tokens"));
  for (const bool block_local : {false, true}) {
    const std::string form = block_local ? "block_local." : "dot_product.";
    const std::string dir = out_ + form;
    const Checkpoint checkpoint =
        WriteAndRead(ImportBert(in_, {.block_local = block_local, .block_size = 8}), dir);
    EXPECT_TRUE(checkpoint.config.post_norm && checkpoint.config.embedding_norm);
    EXPECT_EQ(checkpoint.config.max_seq_len, 64);
    const LoadedModel model = Load(dir);
    // All texts are encoded at once, because no text may depend on the others.
    std::vector<EncoderInput> inputs;
    std::vector<at::Tensor> wanted;
    for (const auto& [name, want] : cases_.tensors) {
      if (!absl::StartsWith(name, form)) continue;
      const std::string mask = "mask." + name.substr(form.size());
      EncoderInput& input = inputs.emplace_back();
      input.text.assign(tokens.begin(), tokens.begin() + want.size(0));
      wanted.push_back(want);
      if (cases_.tensors.count(mask) == 0) continue;
      for (const int32_t visible : Ids(cases_.tensors.at(mask))) {
        input.mask.push_back(visible == 1 ? 0 : -std::numeric_limits<float>::infinity());
      }
    }
    ASSERT_EQ(inputs.size(), 5U);
    auto vectors = model.encoder->Encode(inputs);
    ASSERT_TRUE(vectors.ok()) << vectors.status();
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_TRUE(Close(at::from_blob((*vectors)[i].data(), wanted[i].sizes(), at::kFloat),
                        wanted[i], tolerance::kTwoFp32))
          << form << i;
    }
  }
}

TEST_P(EncoderImportTest, ReportsTheTensorsThatItLeavesOut) {
  const auto import = ImportBert(in_, {});
  ASSERT_TRUE(import.ok()) << import.status();
  const std::string text = ImportText(*import);
  EXPECT_THAT(text, HasSubstr("(the head of masked tokens)"));
  EXPECT_THAT(text, HasSubstr("position.weight (type 0, which all tokens have)"));
  // A tensor that is neither imported nor known as superfluous is an error.
  TensorMap weights = ReadGoldens(absl::StrCat(GetParam(), "/model")).tensors;
  weights[absl::StrCat(GetParam(), ".pooler.dense.weight")] = at::zeros({32, 32});
  for (const char* buffer : {"position_ids", "token_type_ids"}) {  // as in older packages' files
    weights[absl::StrCat(GetParam(), ".embeddings.", buffer)] = at::zeros({1, 64}, at::kLong);
  }
  ASSERT_TRUE(WriteSafetensors(in_ + "/model.safetensors", weights).ok());
  EXPECT_TRUE(ImportBert(in_, {}).ok());
  weights["classifier.dense.weight"] = at::zeros({32, 32});
  ASSERT_TRUE(WriteSafetensors(in_ + "/model.safetensors", weights).ok());
  EXPECT_THAT(ImportBert(in_, {}), Refused("tensor 'classifier.dense.weight': has no place"));
}

// The norms of bert-base-uncased have these names. The tensors of a model without a head, as most
// of sentence-transformers, have no prefix.
TEST_P(EncoderImportTest, NormsMayHaveGammaAndBetaAndNamesNoPrefix) {
  const Checkpoint expected = WriteAndRead(ImportBert(in_, {}), out_);
  const TensorMap source = ReadGoldens(absl::StrCat(GetParam(), "/model")).tensors;
  for (const std::string& prefix : {absl::StrCat(GetParam(), "."), std::string()}) {
    TensorMap weights = {{prefix + "pooler.dense.weight", at::zeros({32, 32})}};
    for (const auto& [name, tensor] : source) {
      absl::string_view bare = name;
      const bool of_head = !absl::ConsumePrefix(&bare, absl::StrCat(GetParam(), "."));
      const std::string old = absl::StrReplaceAll(
          bare, {{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}});
      weights[of_head ? old : prefix + old] = tensor;
    }
    ASSERT_TRUE(WriteSafetensors(in_ + "/model.safetensors", weights).ok());
    const Checkpoint got = WriteAndRead(ImportBert(in_, {}), out_ + "with" + prefix);
    ASSERT_EQ(got.tensors.size(), expected.tensors.size());
    for (const auto& [name, tensor] : got.tensors) {
      EXPECT_TRUE(at::equal(tensor, expected.tensors.at(name))) << name;
    }
  }
}

TEST_P(EncoderImportTest, FaultsOfTheConfigNameTheKey) {
  const std::pair<const char*, Json> faults[] = {
      {"model_type", "gpt2"},        {"is_decoder", true},
      {"add_cross_attention", true}, {"position_embedding_type", "relative_key"},
      {"hidden_act", "silu"},        {"hidden_size", 0},
      {"layer_norm_eps", "x"},       {"type_vocab_size", Json(Json::value_t::discarded)},
      {"sparse_block_size", 128},    {"sparsity_type", "norm"},
      {"num_global_tokens", 1},      {"num_attention_heads", 5}};
  for (const auto& [key, value] : faults) {
    const std::string named = std::string(key) == "num_attention_heads" ? "mixer.heads" : key;
    EXPECT_THAT(WithConfig(key, value), Refused(absl::StrCat("/config.json: ", named, ": ")));
  }
  if (std::string(GetParam()) == "roberta") {
    for (const uint64_t id : {uint64_t{65}, ~uint64_t{0}}) {
      EXPECT_THAT(WithConfig("pad_token_id", id), Refused("pad_token_id: must be an id below"));
    }
  }
}

// The package cuts longer texts and lower-cases them. A model without a tokenizer leaves the second
// to its client.
TEST_P(EncoderImportTest, ReadsHowSentenceTransformersPreparesTexts) {
  std::filesystem::create_directory(in_ + "/0");
  const auto import = [this](const std::string& folder, const char* file, const char* config) {
    const Json module = {{"path", folder}, {"type", "sentence_transformers.models.Transformer"}};
    WriteBytes(in_ + "/modules.json", Json::array({module}).dump());
    WriteBytes(absl::StrCat(in_, "/", folder, "/", file), config);
    return ImportBert(in_, {});
  };
  const auto old = import("", "sentence_roberta_config.json",
                          R"({"max_seq_length": 16, "do_lower_case": false})");
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->config.max_seq_len, 16);
  const char* const file = "sentence_bert_config.json";
  const auto both = import("", file, R"({"max_seq_length": 512, "do_lower_case": null})");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->config.max_seq_len, 64);
  EXPECT_TRUE(import("0", file, R"({"max_seq_length": null})").ok());
  EXPECT_THAT(import("0", file, R"({"max_seq_length": 0})"),
              Refused("/0/sentence_bert_config.json: max_seq_length: must be an integer from 1"));
  const auto lower = import("0", file, R"({"do_lower_case": true})");
  if (std::string(GetParam()) == "roberta") {
    EXPECT_THAT(lower, Refused("/0/sentence_bert_config.json: do_lower_case: only false"));
  } else {
    EXPECT_TRUE(lower.ok()) << lower.status();
  }
  for (const char* key : {"query_length", "document_length", "query_expansion"}) {
    EXPECT_THAT(import("0", file, absl::StrCat("{\"", key, "\": 8}").c_str()),
                Refused(absl::StrCat("config.json: ", key, ": must be null")));
  }
  // A module without a length cuts a text where its tokenizer does.
  const auto longest = [&](const char* of_tokenizer, const char* config) {
    WriteBytes(in_ + "/0/tokenizer_config.json",
               absl::StrCat(R"({"model_max_length": )", of_tokenizer, "}"));
    const auto made = import("0", file, config);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? made->config.max_seq_len : 0;
  };
  EXPECT_EQ(longest("16", "{}"), 16);
  EXPECT_EQ(longest("16", R"({"max_seq_length": null})"), 16);
  EXPECT_EQ(longest("16", R"({"max_seq_length": 32})"), 32);
  EXPECT_EQ(longest("512", "{}"), 64);
  EXPECT_EQ(longest("1000000000000000019884624838656", "{}"), 64);  // no limit
}

INSTANTIATE_TEST_SUITE_P(Packages, EncoderImportTest, testing::Values("roberta", "bert"),
                         [](const auto& package) { return std::string(package.param); });

class RobertaTest : public EncoderImportTest {};
INSTANTIATE_TEST_SUITE_P(Package, RobertaTest, testing::Values("roberta"));

TEST_P(RobertaTest, TextsGetTheirFirstAndLastToken) {
  WriteAndRead(ImportBert(in_, {}), out_);
  const LoadedModel model = Load(out_);
  ASSERT_NE(model.tokenizer, nullptr);
  const std::string& text = cases_.metadata.at("text");
  EXPECT_EQ(*model.tokenizer->Encode(text), Ids(cases_.tensors.at("text.tokens")));
  EXPECT_EQ(*model.tokenizer->Encode(""), (std::vector<int32_t>{0, 2}));
  // They stand for no bytes of the text.
  EXPECT_EQ(model.tokenizer->TokenBytes(0), "");
  EXPECT_EQ(model.tokenizer->TokenBytes(2), "");
}

// Without a tokenizer.json only the config has them.
TEST_P(RobertaTest, TheConfigMustNameTheFirstAndTheLastToken) {
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    EXPECT_THAT(WithConfig(key, Json(Json::value_t::discarded)),
                Refused(absl::StrCat("/config.json: ", key, ": must be the id of the token")));
  }
}

// The post-processor of a tokenizer.json, as the library tokenizers writes it, defines the first
// and the last token of a text.
TEST_P(RobertaTest, ReadsThePostProcessor) {
  Json words = Json::parse(ReadBytes("tests/parity/goldens/gpt2_hub/tokenizer.json"));
  words["unused"] = std::string(2 << 20, 'x');  // the vocabulary of RoBERTa is as large
  const auto frame = [&](const Json& processor, const std::string& dir) -> absl::Status {
    words["post_processor"] = processor;
    WriteBytes(in_ + "/tokenizer.json", words.dump());
    const auto import = ImportBert(in_, {});
    if (!import.ok()) return import.status();
    WriteAndRead(import, dir);
    const std::vector<int32_t> ids = *Load(dir).tokenizer->Encode("a");
    EXPECT_EQ(ids.size(), 3U);
    EXPECT_EQ(ids.front(), 7);
    EXPECT_EQ(ids.back(), 9);
    return absl::OkStatus();
  };
  Json roberta = Json::parse(R"({"type": "RobertaProcessing", "sep": ["</s>", 9],
    "cls": ["<s>", 7], "trim_offsets": true, "add_prefix_space": false})");
  EXPECT_TRUE(frame(roberta, out_ + "1").ok());
  Json pieces = Json::parse(R"({"type": "TemplateProcessing", "single": [
    {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
    {"SpecialToken": {"id": "</s>", "type_id": 0}}], "pair": [],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]},
                       "</s>": {"id": "</s>", "ids": [9], "tokens": ["</s>"]}}})");
  EXPECT_TRUE(frame(pieces, out_ + "2").ok());
  pieces["special_tokens"]["</s>"]["ids"] = {9, 10};
  EXPECT_THAT(frame(pieces, out_ + "3"), Refused("post_processor.special_tokens: each must have"));
  for (const Json& token : {Json("x"), Json(5), Json{{"ids", {9 + (uint64_t{1} << 32)}}}}) {
    pieces["special_tokens"]["</s>"] = token;
    EXPECT_THAT(frame(pieces, out_ + "3"),
                Refused("tokenizer.json: post_processor.special_tokens: each must have"));
  }
  roberta["sep"] = "</s>";
  EXPECT_THAT(frame(roberta, out_ + "4"),
              Refused("post_processor.sep: must be a token and its id"));
  for (const uint64_t id : {uint64_t{100000}, 9 + (uint64_t{1} << 32)}) {
    roberta["sep"] = {"</s>", id};
    EXPECT_THAT(frame(roberta, out_ + "5"), Refused("post_processor.sep: must be a token and its"));
  }
}

// Writing the weights takes minutes, and the folder that is written is removed with the error.
TEST_P(RobertaTest, FaultsOfTheTokenizerAreFoundBeforeTheWeightsAreWritten) {
  Json words = Json::parse(ReadBytes("tests/parity/goldens/gpt2_hub/tokenizer.json"));
  const std::string path = in_ + "/tokenizer.json";
  words["pre_tokenizer"]["add_prefix_space"] = true;
  WriteBytes(path, words.dump());
  EXPECT_THAT(ImportBert(in_, {}), Refused(path + ": pre_tokenizer.add_prefix_space: must be"));
  words["post_processor"] = {{"unused", std::string(17 << 20, 'x')}};
  WriteBytes(path, words.dump());
  EXPECT_THAT(ImportBert(in_, {}), Refused(path + ": config is "));
}

// Reads modules.json and the config of the pooling, as sentence-transformers writes them.
TEST_P(RobertaTest, ReadsThePoolingOfSentenceTransformers) {
  const auto modules = [this](const std::vector<std::string>& types) {
    Json list = Json::array();
    for (const std::string& type : types) {
      list.push_back({{"idx", list.size()},
                      {"name", std::to_string(list.size())},
                      {"path", type == "Pooling" ? "1_Pooling" : ""},
                      {"type", "sentence_transformers.models." + type}});
    }
    WriteBytes(in_ + "/modules.json", list.dump());
  };
  const auto pooling = [this](const Json& json) {
    std::filesystem::create_directory(in_ + "/1_Pooling");
    WriteBytes(in_ + "/1_Pooling/config.json", json.dump());
  };
  modules({"Transformer", "Pooling", "Normalize"});
  Json form = {{"word_embedding_dimension", 32},
               {"pooling_mode_cls_token", false},
               {"pooling_mode_mean_tokens", false},
               {"pooling_mode_max_tokens", false},
               {"pooling_mode_lasttoken", false}};
  for (const auto& [key, want] : {std::pair("pooling_mode_cls_token", Pooling::kFirst),
                                  {"pooling_mode_lasttoken", Pooling::kLast},
                                  {"pooling_mode_mean_tokens", Pooling::kMean}}) {
    Json one = form;
    one[key] = true;
    pooling(one);
    const Checkpoint checkpoint = WriteAndRead(ImportBert(in_, {}), out_ + key);
    EXPECT_TRUE(checkpoint.config.pooling == want && checkpoint.config.normalize);
  }
  const std::string file = "/1_Pooling/config.json: pooling_mode_";
  pooling(form);
  EXPECT_THAT(ImportBert(in_, {}), Refused(file + "*: one of"));
  form["pooling_mode_max_tokens"] = true;
  pooling(form);
  EXPECT_THAT(ImportBert(in_, {}), Refused(file + "max_tokens: must be false"));
  form["pooling_mode_max_tokens"] = false;
  form["pooling_mode_cls_token"] = form["pooling_mode_mean_tokens"] = true;
  pooling(form);
  EXPECT_THAT(ImportBert(in_, {}), Refused(file + "*: one of"));
  modules({"Transformer", "Dense"});
  EXPECT_THAT(ImportBert(in_, {}), Refused("/modules.json: type: must be Transformer, Pooling or"));
  modules({"Transformer"});
  const auto plain = ImportBert(in_, {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE(plain->config.pooling == Pooling::kMean && !plain->config.normalize);
}

// Versions from 5.4 on have other names of the classes, and one field for the pooling.
TEST_P(RobertaTest, ReadsTheModulesOfLaterSentenceTransformers) {
  WriteBytes(in_ + "/modules.json", R"([
    {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
    {"path": "1_Pooling",
     "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"},
    {"path": "2_Normalize", "type": "sentence_transformers.base.modules.normalize.Normalize"}])");
  std::filesystem::create_directory(in_ + "/1_Pooling");
  std::filesystem::create_directory(in_ + "/2_Normalize");
  const auto import = [this](const Json& mode) {
    WriteBytes(in_ + "/1_Pooling/config.json",
               Json{{"embedding_dimension", 32}, {"pooling_mode", mode}}.dump());
    return ImportBert(in_, {});
  };
  for (const auto& [mode, want] : {std::pair(Json("mean"), Pooling::kMean),
                                   {Json::array({"cls"}), Pooling::kFirst},
                                   {Json("lasttoken"), Pooling::kLast}}) {
    const auto made = import(mode);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_TRUE(made->config.pooling == want && made->config.normalize) << mode;
  }
  for (const Json& mode : {Json("max"), Json::array({"mean", "max"})}) {
    EXPECT_THAT(import(mode),
                Refused("/1_Pooling/config.json: pooling_mode: must be mean, cls or"));
  }
  const std::string normalize = in_ + "/2_Normalize/config.json";
  for (const char* plain : {R"({"module_input_name": "sentence_embedding"})", "[]"}) {
    WriteBytes(normalize, plain);
    EXPECT_TRUE(import("mean").ok()) << plain;
  }
  WriteBytes(normalize, R"({"module_input_name": "token_embeddings"})");
  EXPECT_THAT(import("mean"), Refused(normalize + ": module_input_name: must be sentence_emb"));
}

TEST_P(RobertaTest, RefusesAPromptBeforeEveryText) {
  WriteBytes(in_ + "/modules.json", "[]");
  const std::string path = in_ + "/config_sentence_transformers.json";
  const auto import = [&](const char* prompt, const char* name) {
    WriteBytes(path, absl::StrCat(R"({"prompts": {"query": ")", prompt,
                                  R"("}, "default_prompt_name": )", name, "}"));
    return ImportBert(in_, {}).status();
  };
  EXPECT_EQ(import("query: ", "null"), absl::OkStatus());
  EXPECT_EQ(import("", "\"query\""), absl::OkStatus());
  EXPECT_THAT(import("query: ", "\"query\""), Refused(path + ": default_prompt_name: names the"));
}

TEST_P(RobertaTest, PositionsBeginAfterThePadding) {
  Json config = Json::parse(ReadBytes(in_ + "/config.json"));
  config["pad_token_id"] = 3;
  WriteBytes(in_ + "/config.json", config.dump());
  const auto import = ImportBert(in_, {});
  ASSERT_TRUE(import.ok()) << import.status();
  EXPECT_EQ(import->config.position_rows, 62);
  const TensorMap weights = ReadGoldens("roberta/model").tensors;
  const at::Tensor& table = weights.at("roberta.embeddings.position_embeddings.weight");
  const at::Tensor& types = weights.at("roberta.embeddings.token_type_embeddings.weight");
  const at::Tensor positions = *import->tensors.at("position.weight").make();
  EXPECT_TRUE(at::equal(positions[0], table[4] + types[0]));
}

class BertTest : public EncoderImportTest {};
INSTANTIATE_TEST_SUITE_P(Package, BertTest, testing::Values("bert"));

TEST_P(BertTest, AcceptsOnlyTokenIds) {
  WriteAndRead(ImportBert(in_, {}), out_);
  EXPECT_EQ(Load(out_).tokenizer, nullptr);
}

}  // namespace
}  // namespace aft
