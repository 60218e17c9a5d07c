// Tests what a run finds in its folder when it starts, and what it leaves there.

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/config/config.h"
#include "model/train/train_config.h"
#include "model/train/trainer.h"
#include "tests/support/mixer_of.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/process.h"
#include "tests/unit/train/trainer_fixture.h"

namespace aft {
namespace {

using RunFolderTest = TrainerTest;

// This folder exists and can be opened and locked, but it takes no files, not even those of root.
TEST_F(RunFolderTest, AFolderThatTakesNoFilesIsRefusedBeforeTheFirstStep) {
  const absl::Status status = Trainer::Create(config_, "/proc/self").status();
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("cannot create /proc/self/resume.safetensors"));
}

TEST_F(RunFolderTest, ARunThatIsDoneLeavesItsResumeFileAlone) {
  Train("/run");
  const std::filesystem::path file = dir_ + "/run/resume.safetensors";
  std::filesystem::last_write_time(file,
                                   std::filesystem::last_write_time(file) - std::chrono::hours(1));
  const auto before = std::filesystem::last_write_time(file);
  EXPECT_TRUE(Train("/run").empty());
  EXPECT_EQ(std::filesystem::last_write_time(file), before);
}

TEST_F(RunFolderTest, TheSeedStaysWhereItDecidesWhatIsMeasured) {
  const auto resume = [this](const std::string& out) {
    config_.seed = 1;
    Train(out, 1);
    config_.seed = 2;
    return Trainer::Create(config_, dir_ + out).status();
  };
  const auto is_refused =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               testing::HasSubstr("resume.safetensors: belongs to a run with seed 1, not 2"));
  EXPECT_TRUE(resume("/next").ok());
  config_.network.architecture = Architecture::kEncoder;
  config_.network.mixer = MixerOf("aft_simple causal=false");
  config_.network.vocabulary_head = true;
  config_.objective = ObjectiveKind::kMaskedTokens;
  EXPECT_THAT(resume("/masked"), is_refused);
  config_.network.vocabulary_head = false;
  config_.network.labels = {"a", "b"};
  config_.objective = ObjectiveKind::kLabels;
  config_.examples = {dir_ + "/examples.jsonl"};
  std::ofstream examples(config_.examples[0]);
  for (int i = 0; i < 40; ++i) examples << R"({"label": "a", "text": "fox"})" << '\n';
  examples.close();
  EXPECT_TRUE(resume("/labels").ok());
  config_.least_tokens = 2;
  EXPECT_THAT(resume("/stretches"), is_refused);
}

// The run is stopped before its first evaluation, and then made shorter than what it has done.
TEST_F(RunFolderTest, ARunThatEndsWithoutACheckpointFails) {
  const auto config = ReadTrainConfig(WriteConfig(R"("total_tokens": 7680)"));
  ASSERT_TRUE(config.ok()) << config.status();
  config_ = *config;
  Train("/run", 1);
  const auto run = [this](const std::string& total_tokens) {
    return client::RunToEnd({AFT_TRAIN, "--config",
                             WriteConfig(R"("total_tokens": )" + total_tokens), "--out",
                             dir_ + "/run"});
  };
  const client::Ended shorter = run("128");
  EXPECT_EQ(shorter.code, 1);
  EXPECT_THAT(shorter.err, testing::HasSubstr(dir_ + "/run: has no checkpoint yet, because"));
  EXPECT_THAT(shorter.err, testing::HasSubstr("a run of more than 1 steps makes one"));
  EXPECT_THAT(shorter.err, testing::Not(testing::HasSubstr("serve it")));
  const client::Ended longer = run("256");
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_THAT(longer.err, testing::HasSubstr("aft-train: serve it: "));
}

}  // namespace
}  // namespace aft
