// Tests which segments a run of a language model reads, and with which states.

#include <memory>
#include <string>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "model/config/kinds.h"
#include "model/train/objective.h"
#include "model/train/run_tokenizer.h"
#include "model/train/start_values.h"
#include "model/train/train_network.h"
#include "tests/support/mixer_of.h"
#include "tests/support/mixer_reference.h"
#include "tests/support/temp_files.h"
#include "tests/unit/train/tokens_of.h"
#include "tests/unit/train/trainer_fixture.h"

namespace aft {
namespace {

class NextTokensTest : public TrainerTest {
 protected:
  // The objective of the config, whose tokens are bytes.
  absl::StatusOr<std::unique_ptr<Objective>> Make() const {
    return MakeObjective(config_, [this](const std::vector<absl::string_view>&) {
      return LoadRunTokenizer(config_.network, dir_);
    });
  }
};

TEST_F(NextTokensTest, TheProbabilityDecidesWhetherAStreamJumps) {
  std::string text;  // every byte tells the next one
  for (int i = 0; i < 800'000; ++i) text += static_cast<char>(i % 251);
  WriteBytes(config_.texts[0], text);
  for (const double probability : {1e-9, 1.0}) {
    config_.restart_probability = probability;
    const auto objective = Make();
    ASSERT_TRUE(objective.ok()) << objective.status();
    const at::Tensor last = TokensOf(**objective, config_.network, 0).select(1, -1);
    const at::Tensor next = TokensOf(**objective, config_.network, 1).select(1, 0);
    EXPECT_EQ(next.eq((last + 1).remainder(251)).all().item<bool>(), probability < 1);
  }
}

// All segments of the text are the same. Even so the sums of WKV-7 depend on the length of the
// text, unlike averages.
TEST_F(NextTokensTest, AStreamThatJumpsHasAnEmptyState) {
  WriteBytes(config_.texts[0], std::string(8000, 'a'));
  UseMixer(ExampleMixer(MixerKind::kWkv7, /*tokens=*/32), &config_.network);
  config_.bf16 = false;
  const TrainNetwork network(config_.network,
                             StartValues(config_.network, {.seed = 1, .spread = 0.3}));
  for (const double probability : {1e-9, 1.0}) {
    config_.restart_probability = probability;
    const auto objective = Make();
    ASSERT_TRUE(objective.ok()) << objective.status();
    const double first = (*objective)->Next(network, 0).nats.item<double>();
    EXPECT_EQ((*objective)->Next(network, 1).nats.item<double>() == first, probability == 1);
  }
}

TEST_F(NextTokensTest, OnlyAStateThatIsCarriedMakesOneLongState) {
  const auto name = [this] {
    const auto objective = Make();
    EXPECT_TRUE(objective.ok()) << objective.status();
    return objective.ok() ? (*objective)->names().held_out[1].name : "";
  };
  EXPECT_EQ(name(), "one long state");
  config_.network.mixer = MixerOf("dot_product");
  EXPECT_EQ(name(), "consecutive segments");
}

TEST_F(NextTokensTest, EverySegmentWithoutACarriedStateIsAtANewPlace) {
  config_.network.mixer = MixerOf("dot_product");
  config_.network.max_seq_len = 32;
  config_.restart_probability = 1e-9;
  const std::vector<double> rarely = Train("/rarely");
  config_.restart_probability = 1;
  EXPECT_EQ(Train("/always"), rarely);
}

}  // namespace
}  // namespace aft
