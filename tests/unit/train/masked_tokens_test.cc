// Tests which tokens a masked-token run reads.

#include <memory>
#include <string>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "model/config/config.h"
#include "model/train/objective.h"
#include "model/train/run_tokenizer.h"
#include "model/train/train_config.h"
#include "model/train/train_network.h"
#include "tests/support/mixer_of.h"
#include "tests/support/temp_files.h"
#include "tests/unit/train/tokens_of.h"
#include "tests/unit/train/trainer_fixture.h"

namespace aft {
namespace {

constexpr int64_t kMask = 'm';

class MaskedTokensTest : public TrainerTest {
 protected:
  MaskedTokensTest() {
    WriteBytes(config_.texts[0], std::string(4000, 'a'));
    config_.network.architecture = Architecture::kEncoder;
    config_.network.vocabulary_head = true;
    config_.network.mixer = MixerOf("aft_simple causal=false");
    config_.objective = ObjectiveKind::kMaskedTokens;
    config_.mask_token = kMask;
  }

  std::unique_ptr<Objective> Make() const {
    auto objective =
        MakeObjective(config_, [this](const std::vector<absl::string_view>& /*training_texts*/) {
          return LoadRunTokenizer(config_.network, dir_);
        });
    EXPECT_TRUE(objective.ok()) << objective.status();
    return objective.ok() ? *std::move(objective) : nullptr;
  }
};

// Nearly every token between those that the tokenizer adds is masked.
TEST_F(MaskedTokensTest, EverySegmentHasWhatTheTokenizerAddsAroundAText) {
  config_.mask_probability = 0.999;
  const std::unique_ptr<Objective> plain = Make();
  config_.network.text_prefix = {1, 2};
  config_.network.text_suffix = {3};
  const std::unique_ptr<Objective> framed = Make();
  ASSERT_TRUE(plain != nullptr && framed != nullptr);
  EXPECT_EQ(framed->Describe(), plain->Describe()) << "a file has none of these tokens";
  const at::Tensor trained = TokensOf(*framed, config_.network, 0);
  const at::Tensor held_out = TokensRead(config_.network, [&](const TrainNetwork& network) {
    framed->Measure(network, Objective::Extent::kOneBatch);
  });
  EXPECT_EQ(trained.size(0), config_.batch);
  for (const at::Tensor& tokens : {trained, held_out}) {
    ASSERT_EQ(tokens.size(1), config_.segment);
    EXPECT_TRUE(tokens.select(1, 0).eq(1).all().item<bool>()) << tokens;
    EXPECT_TRUE(tokens.select(1, 1).eq(2).all().item<bool>()) << tokens;
    EXPECT_TRUE(tokens.select(1, -1).eq(3).all().item<bool>()) << tokens;
    EXPECT_GT(tokens.eq(kMask).sum().item<int64_t>(), tokens.numel() / 2);
  }
}

// Each segment has one masked token at a random place between the others.
TEST_F(MaskedTokensTest, EveryPlaceBetweenTheAddedTokensIsMasked) {
  config_.mask_probability = 1e-9;
  config_.segment = 6;
  config_.network.text_prefix = {1, 2};
  config_.network.text_suffix = {3};
  const std::unique_ptr<Objective> objective = Make();
  ASSERT_NE(objective, nullptr);
  at::Tensor masked = TokensOf(*objective, config_.network, 0).eq(kMask).any(0);
  for (int64_t step = 1; step < 20; ++step) {
    masked |= TokensOf(*objective, config_.network, step).eq(kMask).any(0);
  }
  for (int64_t t = 0; t < config_.segment; ++t) {
    EXPECT_EQ(masked[t].item<bool>(), t >= 2 && t < 5) << t;
  }
}

}  // namespace
}  // namespace aft
