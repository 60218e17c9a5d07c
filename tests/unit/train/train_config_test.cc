#include "model/train/train_config.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using ::testing::HasSubstr;

constexpr char kConfig[] = R"({
  "network": {"format_version": 1, "architecture": "decoder_lm", "vocab_size": 256, "d_model": 16,
    "n_layers": 1, "d_ff": 32, "activation": "gelu_tanh", "norm": "layer_norm", "norm_eps": 1e-5,
    "tie_embeddings": false, "mixer": {"kind": "aft_local", "window": 4, "prefix_block": 8},
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
}

TEST(TrainConfigTest, EveryBadKeyIsNamed) {
  struct Bad {
    const char* json;  // put in front of "texts"
    const char* message;
  };
  for (const Bad& bad :
       {Bad{R"("colour": 1,)", "colour: unknown key"},
        Bad{R"("held_out": 0.7,)", "held_out: must be in"}, Bad{R"("batch": 0,)", "batch: must be"},
        Bad{R"("batch": "8",)", "batch: wrong type"},
        Bad{R"("total_tokens": 0,)", "total_tokens: must be"},
        Bad{R"("restart_probability": 0,)", "restart_probability: must be"},
        Bad{R"("learning_rate": 0,)", "learning_rate: must be"},
        Bad{R"("warmup_steps": -1,)", "warmup_steps: must"},
        Bad{R"("beta1": 1,)", "beta1: must be"}, Bad{R"("beta2": -0.1,)", "beta2: must be"},
        Bad{R"("weight_decay": -1,)", "weight_decay: must"},
        Bad{R"("clip_norm": 0,)", "clip_norm: must be"},
        Bad{R"("dropout": 1,)", "dropout: must be"}, Bad{R"("bf16": 1,)", "bf16: wrong type"},
        Bad{R"("eval_every_steps": 0,)", "eval_every_steps: must"},
        Bad{R"("eval_bytes": 1,)", "eval_bytes: must"},
        Bad{R"("threads": -1,)", "threads: must"}}) {
    const std::string json =
        absl::StrReplaceAll(kConfig, {{"\"texts\"", absl::StrCat(bad.json, "\"texts\"")}});
    const auto config = Read(json);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << bad.json;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(bad.message)) << bad.json;
  }
}

TEST(TrainConfigTest, SegmentsAreWholeBlocks) {
  const auto config = Read(absl::StrReplaceAll(kConfig, {{"\"segment\": 32", "\"segment\": 30"}}));
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("segment: must be a multiple"));
}

TEST(TrainConfigTest, SegmentsFitTheNetwork) {
  const auto config =
      Read(absl::StrReplaceAll(kConfig, {{"\"n_layers\"", "\"max_seq_len\": 16, \"n_layers\""}}));
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("segment: must not exceed"));
}

TEST(TrainConfigTest, OnlyLanguageModelsAreTrained) {
  const auto config = Read(absl::StrReplaceAll(
      kConfig, {{"decoder_lm", "encoder"}, {"\"tie_embeddings\": false,", ""}}));
  EXPECT_THAT(std::string(config.status().message()),
              HasSubstr("network.architecture: must be \"decoder_lm\""));
}

TEST(TrainConfigTest, NetworkErrorsKeepTheirPath) {
  const auto config = Read(absl::StrReplaceAll(kConfig, {{"\"window\": 4", "\"window\": -4"}}));
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("network.mixer.window"));
}

TEST(TrainConfigTest, MissingAndBrokenFilesAreTold) {
  EXPECT_EQ(ReadTrainConfig("no/such.json").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Read("{").status().message()), HasSubstr("not valid JSON"));
}

}  // namespace
}  // namespace aft
