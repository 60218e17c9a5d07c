#include "model/train/train_config.h"

#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using ::testing::HasSubstr;

constexpr char kConfig[] = R"({
  "network": {"format_version": 1, "architecture": "decoder_lm", "tie_embeddings": false,
    "vocab_size": 256, "d_model": 16, "n_layers": 1, "d_ff": 32, "activation": "gelu_tanh",
    "norm": "layer_norm", "norm_eps": 1e-5, "mixer": {"kind": "aft_local", "window": 4, "prefix_block": 8},
    "tokenizer": {"kind": "bytes"}},
  "texts": ["a.txt"],
  "segment": 32
})";

const TempFolder& Folder() {
  static const TempFolder folder;
  return folder;
}

absl::StatusOr<TrainConfig> Read(const std::string& json) {
  const std::string path = Folder().File("train.json");
  std::ofstream(path) << json;
  return ReadTrainConfig(path);
}

TEST(TrainConfigTest, ReadsAValidFile) {
  const auto config = Read(kConfig);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->segment, 32);
  EXPECT_EQ(config->network.mixer.prefix_block, 8);
  EXPECT_EQ(config->texts[0], Folder().File("a.txt")) << "relative to the config's folder";
  const auto chars = Read(absl::StrReplaceAll(
      kConfig, {{R"("bytes")", R"("chars")"}, {R"("texts")", R"("tokenizer": "b", "texts")"}}));
  ASSERT_TRUE(chars.ok()) << chars.status();
  EXPECT_EQ(chars->tokenizer, Folder().File("b"));
}

TEST(TrainConfigTest, EveryFaultIsNamed) {
  struct Fault {
    const char* text;  // a part of kConfig
    const char* instead;
    const char* message;
  };
  constexpr char kTexts[] = R"("texts")";
  for (const Fault& fault :
       {Fault{kTexts, R"("colour": 1, "texts")", "colour: unknown key"},
        {kTexts, R"("seed": 1, "seed": 2, "texts")", "seed: given more than once"},
        {R"("n_layers")", R"("d_model": 8, "n_layers")", "network.d_model: given more than once"},
        {kTexts, R"("seed": -1, "texts")", "seed: wrong type"},
        {kTexts, R"("held_out": 0.7, "texts")", "held_out: must be in"},
        {kTexts, R"("batch": 0, "texts")", "batch: must be"},
        {kTexts, R"("batch": "8", "texts")", "batch: wrong type"},
        {kTexts, R"("batch": 4611686018427387904, "texts")", "batch: must be in [1, 1048576]"},
        {kTexts, R"("total_tokens": 0, "texts")", "total_tokens: must be"},
        {kTexts, R"("total_tokens": 9223372036854775807, "texts")", "total_tokens: must be"},
        {kTexts, R"("restart_probability": 0, "texts")", "restart_probability: must be"},
        {kTexts, R"("learning_rate": 0, "texts")", "learning_rate: must be"},
        {kTexts, R"("warmup_steps": -1, "texts")", "warmup_steps: must"},
        {kTexts, R"("beta1": 1, "texts")", "beta1: must be"},
        {kTexts, R"("beta2": -0.1, "texts")", "beta2: must be"},
        {kTexts, R"("weight_decay": -1, "texts")", "weight_decay: must"},
        {kTexts, R"("clip_norm": 0, "texts")", "clip_norm: must be"},
        {kTexts, R"("dropout": 1, "texts")", "dropout: must be"},
        {kTexts, R"("bf16": 1, "texts")", "bf16: wrong type"},
        {kTexts, R"("eval_every_steps": 0, "texts")", "eval_every_steps: must"},
        {kTexts, R"("eval_tokens": 1, "texts")", "eval_tokens: must"},
        {kTexts, R"("threads": -1, "texts")", "threads: must"},
        {kTexts, R"("threads": 4294967297, "texts")", "threads: must be in [0, 1024]"},
        {R"("segment": 32)", R"("segment": 30)", "segment: must be a multiple"},
        {R"("segment": 32)", R"("segment": 9223372036854775800)", "segment: must be in [2, "},
        {R"("n_layers")", R"("max_seq_len": 16, "n_layers")", "segment: must not exceed"},
        {R"("decoder_lm", "tie_embeddings": false)", R"("encoder")",
         "network: an encoder needs labels or vocabulary_head, or the objective \"pairs\""},
        {kTexts, R"("objective": "pairs", "texts")", "objective: must be \"next_tokens\" for this"},
        {kTexts, R"("objective": "sums", "texts")", "objective: must be \"next_tokens\" or \"mas"},
        {kTexts, R"("objective": "", "texts")", "objective: must be \"next_tokens\" or \"mas"},
        {kTexts, R"("start": "", "texts")", "start: must be \"narrow\" or \"linear\" or"},
        {kTexts, R"("bias_start": "", "texts")", "bias_start: must be \"slope\" or \"zeros\" or"},
        {kTexts, R"("mask_probability": 0.1, "texts")", "mask_probability: unknown key"},
        {kTexts, R"("epochs": 1, "texts")", "epochs: unknown key for the objective next_tokens"},
        {kTexts, R"("start": "ones", "texts")",
         "start: must be \"narrow\" or \"linear\" or \"xavier\""},
        {kTexts, R"("start": "xavier", "weight_spread": 0.1, "texts")",
         "weight_spread: must be absent"},
        {kTexts, R"("bias_start": 0, "texts")", "bias_start: wrong type"},
        {kTexts, R"("embedding_dropout": 1, "texts")", "embedding_dropout: must be in"},
        {kTexts, R"("feed_forward_dropout": -1, "texts")", "feed_forward_dropout: must be in"},
        {kTexts, R"("attention_dropout": 0.1, "texts")",
         "attention_dropout: must be absent or 0 for the network's mixer.kind \"aft_local\""},
        {kTexts, R"("device": "cuda:0", "texts")", "device: must be \"cpu\""},
        {R"("window": 4)", R"("window": -4)", "network.mixer.window"}}) {
    EXPECT_THAT(Read(absl::StrReplaceAll(kConfig, {{fault.text, fault.instead}})),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(fault.message)))
        << fault.instead;
  }
  EXPECT_THAT(
      Read(absl::StrReplaceAll(kConfig, {{R"("kind": "bytes")", R"("kind": "bpe")"},
                                         {R"("vocab_size": 256)", R"("vocab_size": 255)"}})),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs at least 256")));
}

TEST(TrainConfigTest, MissingAndBrokenFilesAreErrors) {
  EXPECT_EQ(ReadTrainConfig("no/such.json").status().code(), absl::StatusCode::kNotFound);
  const std::string null_byte("\0 colour", 8);
  for (const std::string& json : {std::string("{"), kConfig + null_byte}) {
    EXPECT_THAT(std::string(Read(json).status().message()), HasSubstr("not valid JSON")) << json;
  }
  const std::string deep = absl::StrReplaceAll(
      kConfig, {{R"({"kind": "bytes"})", std::string(3000, '[') + std::string(3000, ']')}});
  EXPECT_THAT(Read(deep), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("not valid JSON: too many levels")));
}

constexpr char kClassifier[] = R"({
  "network": {"format_version": 1, "architecture": "encoder", "vocab_size": 17, "d_model": 16,
    "n_layers": 1, "d_ff": 32, "activation": "gelu_tanh", "norm": "layer_norm", "norm_eps": 1e-5,
    "mixer": {"kind": "aft_conv", "window": 3, "causal": false, "grid": true},
    "labels": ["no", "yes"]},
  "images": "a.csv",
  "image_width": 8,
  "held_out": 0.2
})";

TEST(TrainConfigTest, ReadsAClassifiersFile) {
  const auto config = Read(kClassifier);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->images, Folder().File("a.csv")) << "relative to the config's folder";
  EXPECT_EQ(config->image_width, 8);
  EXPECT_EQ(config->network.labels.size(), 2U);
}

TEST(TrainConfigTest, EveryFaultOfAClassifierIsNamed) {
  const std::pair<const char*, const char*> faults[] = {
      {R"("texts": ["a.txt"], "images")", "texts: unknown key"},
      {R"("segment": 64, "images")", "segment: unknown key"},
      {R"("epochs": 0, "images")", "epochs: must be in [1, "},
      {R"("epochs": 4611686018427387904, "images")", "epochs: must be in [1, "},
      {R"("shift": 8, "images")", "shift: must be in [0, image_width)"},
      {R"("shift": -1, "images")", "shift: must be in [0, image_width)"},
      {R"("noise": 17, "images")", "noise: must be in [0, network.vocab_size)"},
      {R"("weight_spread": 0, "images")", "weight_spread: must be positive"},
      {R"("batch": 0, "images")", "batch: must be"},
      {R"("image": "x", "images")", "image: unknown key"}};
  for (const auto& [instead, message] : faults) {
    EXPECT_THAT(Read(absl::StrReplaceAll(kClassifier, {{R"("images")", instead}})),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
  EXPECT_THAT(Read(absl::StrReplaceAll(kClassifier, {{R"("image_width": 8,)", ""}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("image_width: must be at")));
  EXPECT_THAT(Read(absl::StrReplaceAll(kClassifier, {{R"("images": "a.csv",)", ""}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("images: name a file")));
  EXPECT_THAT(
      Read(absl::StrReplaceAll(kClassifier, {{R"(,
    "labels": ["no", "yes"])",
                                              ""}})),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("network: an encoder needs labels")));
  EXPECT_THAT(Read(absl::StrReplaceAll(kClassifier,
                                       {{",\n    \"labels\": [\"no\", \"yes\"]", ""},
                                        {R"("images")", R"("objective": "pairs", "images")"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("grid: images need labels")));
}

// The config of an encoder of texts, with `more` in its network and `keys` outside of the network.
std::string EncoderRun(const std::string& more, const std::string& keys) {
  return absl::StrCat(R"({"network": {"format_version": 1, "architecture": "encoder",
    "vocab_size": 256, "d_model": 16, "n_layers": 1, "d_ff": 32, "activation": "gelu_tanh",
    "norm": "layer_norm", "norm_eps": 1e-5, "tokenizer": {"kind": "bytes"},
    "mixer": {"kind": "dot_product", "causal": false})",
                      more, "}, ", keys, "}");
}

TEST(TrainConfigTest, TheHeadOfAnEncoderDecidesItsObjective) {
  constexpr char kVocabulary[] = R"(, "vocabulary_head": true, "tie_embeddings": true)";
  constexpr char kLabelled[] = R"(, "labels": ["no", "yes"])";
  const auto objective = [](const std::string& more, const std::string& keys) {
    const auto config = Read(EncoderRun(more, keys));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? ObjectiveName(config->objective) : "";
  };
  EXPECT_STREQ(objective(kVocabulary, R"("texts": ["a"], "mask_token": 1)"), "masked_tokens");
  EXPECT_STREQ(objective(kLabelled, R"("examples": ["a"], "attention_dropout": 0.1)"), "labels");
  EXPECT_STREQ(objective("", R"("objective": "pairs", "examples": ["a"])"), "pairs");
  const auto config =
      Read(EncoderRun("", R"("objective": "pairs", "examples": ["a"], "initial": "b")"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->examples[0], Folder().File("a"));
  EXPECT_EQ(config->initial, Folder().File("b"));

  struct Fault {
    const char* more;
    const char* keys;
    const char* message;
  };
  for (const Fault& fault :
       {Fault{kVocabulary, R"("texts": ["a"], "mask_probability": 1)", "mask_probability: must"},
        {kVocabulary, R"("texts": ["a"], "mask_token": 256)", "mask_token: must be in [0, "},
        {kVocabulary, R"("texts": ["a"], "restart_probability": 1)", "restart_probability: unk"},
        {kVocabulary, R"("examples": ["a"])", "texts: name at least one file"},
        {kVocabulary, R"("objective": "labels", "examples": ["a"])",
         "objective: must be \"masked_tokens\" for this network, got \"labels\""},
        {kLabelled, R"("texts": ["a"])", "examples: name at least one file"},
        {kLabelled, R"("examples": ["a"], "epochs": 0)", "epochs: must be in [1, "},
        {kLabelled, R"("examples": ["a"], "eval_examples": 0)", "eval_examples: must be at"},
        {kLabelled, R"("examples": ["a"], "least_tokens": 513)", "least_tokens: must be in [0, "},
        {kLabelled, R"("examples": ["a"], "temperature": 1)", "temperature: unknown key for the "},
        {kLabelled, R"("examples": ["a"], "tokenizer": "b")", "tokenizer: must be absent with"},
        {"", R"("objective": "pairs", "examples": ["a"], "temperature": 0)", "temperature: must"},
        {"", R"("objective": "pairs", "examples": ["a"], "batch": 1)", "batch: must be at least 2"},
        {"", R"("objective": "pairs", "examples": "a")", "examples: wrong type"}}) {
    EXPECT_THAT(Read(EncoderRun(fault.more, fault.keys)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(fault.message)));
  }
  EXPECT_THAT(
      Read(absl::StrReplaceAll(EncoderRun(kLabelled, R"("examples": ["a"], "segment": 2)"),
                               {{R"("bytes"})", R"("bytes", "prefix": [1], "suffix": [2]})"}})),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("segment: must exceed the 2 tokens that the network's token")));
}

}  // namespace
}  // namespace aft
