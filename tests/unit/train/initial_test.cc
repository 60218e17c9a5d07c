// Tests runs that start from the weights of a checkpoint.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ATen/ops/equal.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/train/start_values.h"
#include "model/train/train_network.h"
#include "model/train/trainer.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/process.h"
#include "tests/unit/train/trainer_fixture.h"

namespace aft {
namespace {

TEST_F(TrainerTest, StartsFromGivenWeights) {
  const std::vector<double> before = Train("/first");
  config_.initial = dir_ + "/first";
  config_.seed = 2;
  config_.warmup_steps = 50;
  const std::vector<double> after = Train("/second", 3);
  EXPECT_LT(after.front(), 0.9 * before.front());
  EXPECT_NEAR(after.front(), before.back(), 0.5);
  // An encoder takes all weights except those of its head, which is a new one.
  config_.network.architecture = Architecture::kEncoder;
  config_.network.mixer.prefix_block = 0;
  config_.network.labels = {"a", "b"};
  config_.objective = ObjectiveKind::kLabels;
  config_.examples = {dir_ + "/examples.jsonl"};
  std::ofstream examples(config_.examples[0]);
  for (int i = 0; i < 40; ++i) examples << R"({"label": "a", "text": "fox"})" << '\n';
  examples.close();
  const auto encoder = Trainer::Create(config_, dir_ + "/encoder");
  ASSERT_TRUE(encoder.ok()) << encoder.status();
  EXPECT_EQ(encoder->new_tensors(), (std::vector<std::string>{"head.bias", "head.weight"}));
  const auto given = ReadCheckpoint(dir_ + "/first");
  ASSERT_TRUE(given.ok());
  for (const auto& [name, tensor] : encoder->network().parameters()) {
    if (name.starts_with("head.")) continue;
    EXPECT_TRUE(at::equal(tensor, given->tensors.at(name))) << name;
  }
  config_.network.d_ff = 48;
  EXPECT_THAT(Trainer::Create(config_, dir_ + "/other"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::HasSubstr("initial: " + dir_ + "/first has no layers.0.ffn")));
  config_.network.n_layers = 1;
  EXPECT_THAT(Trainer::Create(config_, dir_ + "/other"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::HasSubstr("initial: " + dir_ + "/first has layers.1.")));
  config_.initial = dir_ + "/none";
  EXPECT_THAT(Trainer::Create(config_, dir_ + "/other"),
              StatusIs(absl::StatusCode::kNotFound, testing::HasSubstr("initial: ")));
}

TEST_F(TrainerTest, TheNormsOfGivenWeightsMustFit) {
  config_.initial = dir_ + "/given";
  std::filesystem::create_directory(config_.initial);
  ASSERT_TRUE(
      WriteCheckpoint(config_.initial, config_.network, StartValues(config_.network, {})).ok());
  const auto refused = [this](const std::string& why) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    testing::HasSubstr("initial: " + config_.initial + why));
  };
  config_.network.embedding_norm = true;
  EXPECT_THAT(Trainer::Create(config_, dir_ + "/run"), refused(" has no embed_norm."));
  config_.network.embedding_norm = false;
  config_.network.final_norm = false;
  EXPECT_THAT(Trainer::Create(config_, dir_ + "/run"), refused(" has norm."));
}

// The head of the given network is lost when the other one takes its embedding for a head.
TEST_F(TrainerTest, NamesTheGivenWeightsThatItDoesNotUse) {
  config_.initial = dir_ + "/given";
  std::filesystem::create_directory(config_.initial);
  config_.network.tie_embeddings = false;
  ASSERT_TRUE(
      WriteCheckpoint(config_.initial, config_.network, StartValues(config_.network, {})).ok());
  config_.network.tie_embeddings = true;
  {
    const auto trainer = Trainer::Create(config_, dir_ + "/run");
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    EXPECT_EQ(trainer->dropped_tensors(), std::vector<std::string>{"head.weight"});
    EXPECT_TRUE(trainer->new_tensors().empty());
  }
  const std::string file = WriteConfig(R"("initial": "given", "total_tokens": 128)");
  const client::Ended ended =
      client::RunToEnd({AFT_TRAIN, "--config", file, "--out", dir_ + "/run"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.err,
              testing::HasSubstr(absl::StrCat("aft-train: these tensors of ", config_.initial,
                                              " are not used: head.weight\n")));
}

TEST_F(TrainerTest, GivenWeightsWithoutATokenizerNeedOneOfTheConfig) {
  config_.initial = dir_;
  for (const std::string kind : {"bpe", "chars"}) {
    config_.network.tokenizer = kind;
    EXPECT_THAT(
        Trainer::Create(config_, dir_ + "/run"),
        StatusIs(absl::StatusCode::kNotFound,
                 testing::AllOf(testing::HasSubstr(absl::StrCat(
                                    "initial: ", dir_, " has no tokenizer of the kind \"", kind)),
                                testing::HasSubstr("; name the folder of one in `tokenizer`"))));
  }
}

}  // namespace
}  // namespace aft
