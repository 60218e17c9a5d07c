// Tests which tokens a step of labels or pairs reads, the order of examples, the mean of a text's
// tokens, and the loss of pairs.

#include "model/train/examples.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/tensor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "model/api/pooling.h"
#include "model/config/config.h"
#include "model/train/objective.h"
#include "model/train/run_tokenizer.h"
#include "model/train/start_values.h"
#include "model/train/train_config.h"
#include "model/train/train_network.h"
#include "tests/support/mixer_of.h"
#include "tests/support/temp_files.h"
#include "tests/unit/train/tiny_network.h"
#include "tests/unit/train/tokens_of.h"

namespace aft {
namespace {

constexpr char kAlphabet[] = "abcdefghijklmnopqrstuvwxyz";

class ExamplesTest : public testing::Test {
 protected:
  ExamplesTest() {
    at::set_num_threads(1);  // tiny tensors: a second thread only waits
    config_.network = TinyNetwork();
    config_.network.architecture = Architecture::kEncoder;
    config_.network.n_layers = 1;
    config_.network.mixer = MixerOf("aft_simple causal=false");
    config_.examples = {folder_.File("examples.jsonl")};
    config_.held_out = 0.25;
    config_.segment = 32;
    config_.batch = 4;
    config_.bf16 = false;
  }

  std::unique_ptr<Objective> Make(ObjectiveKind kind, const std::string& lines) {
    std::ofstream(config_.examples[0]) << lines;
    config_.objective = kind;
    auto objective =
        MakeObjective(config_, [&](const std::vector<absl::string_view>& /*training_texts*/) {
          return LoadRunTokenizer(config_.network, folder_.path());
        });
    EXPECT_TRUE(objective.ok()) << objective.status();
    return objective.ok() ? *std::move(objective) : nullptr;
  }

  // Texts of 104 tokens.
  std::unique_ptr<Objective> MakeOfLongTexts(ObjectiveKind kind) {
    const bool labels = kind == ObjectiveKind::kLabels;
    config_.network.labels =
        labels ? std::vector<std::string>{"x", "y"} : std::vector<std::string>();
    const std::string text = absl::StrCat(kAlphabet, kAlphabet, kAlphabet, kAlphabet);
    std::string lines;
    for (int i = 0; i < 16; ++i) {
      absl::StrAppend(&lines, R"({")", labels ? "label" : "a", R"(": ")", labels ? "x" : text,
                      R"(", ")", labels ? "text" : "b", R"(": ")", text, "\"}\n");
    }
    return Make(kind, lines);
  }

  // The held-out loss of pairs. The first text of a pair has a letter between `before` and `after`,
  // the second one has only the letter. In the network no token sees another one.
  double LossOfLetters(const std::string& before, const std::string& after) {
    std::string lines;
    for (int i = 0; i < 16; ++i) {
      const std::string letter(1, kAlphabet[i]);
      absl::StrAppend(&lines, R"({"a": ")", before, letter, after, R"(", "b": ")", letter, "\"}\n");
    }
    const std::unique_ptr<Objective> objective = Make(ObjectiveKind::kPairs, lines);
    TrainNetwork network(config_.network, StartValues(config_.network, {.seed = 1, .spread = 0.3}));
    {
      const at::NoGradGuard no_grad;
      network.parameters().at("layers.0.mixer.out.weight").zero_();
    }
    return objective ? objective->Measure(network, Objective::Extent::kAll)[0] : 0;
  }

  const TempFolder folder_;
  TrainConfig config_;
};

TEST_F(ExamplesTest, StretchesHaveRandomLengthsAndPlaces) {
  config_.least_tokens = 4;
  const auto objective = MakeOfLongTexts(ObjectiveKind::kLabels);
  ASSERT_NE(objective, nullptr);
  std::set<int64_t> lengths, firsts;
  for (int64_t step = 0; step < 8; ++step) {
    const at::Tensor tokens = TokensOf(*objective, config_.network, step);
    lengths.insert(tokens.size(1));
    for (int64_t row = 0; row < 4; ++row) firsts.insert(tokens[row][0].item<int64_t>());
  }
  EXPECT_GT(lengths.size(), 2U);
  EXPECT_GE(*lengths.begin(), 4);
  EXPECT_LE(*lengths.rbegin(), 32);
  EXPECT_GT(firsts.size(), 4U);
}

TEST_F(ExamplesTest, LengthsAreEvenOnALogarithmicScale) {
  config_.least_tokens = 2;  // up to 32: half of the lengths are below 8
  const auto objective = MakeOfLongTexts(ObjectiveKind::kLabels);
  ASSERT_NE(objective, nullptr);
  int shorter = 0;
  for (int64_t step = 0; step < 200; ++step) {
    shorter += TokensOf(*objective, config_.network, step).size(1) < 8 ? 1 : 0;
  }
  EXPECT_NEAR(shorter, 100, 30);
}

TEST_F(ExamplesTest, ALongTextIsCutAndKeepsWhatTheTokenizerAddsAroundIt) {
  for (const bool framed : {false, true}) {
    if (framed) config_.network.text_prefix = {1};
    if (framed) config_.network.text_suffix = {2};
    for (const ObjectiveKind kind : {ObjectiveKind::kLabels, ObjectiveKind::kPairs}) {
      const auto objective = MakeOfLongTexts(kind);
      ASSERT_NE(objective, nullptr);
      const at::Tensor tokens = TokensOf(*objective, config_.network, 0);
      ASSERT_EQ(tokens.size(1), 32);
      EXPECT_TRUE(tokens.select(1, 0).eq(framed ? 1 : 'a').all().item<bool>()) << tokens;
      EXPECT_TRUE(tokens.select(1, 30).eq(framed ? 'd' : 'e').all().item<bool>()) << tokens;
      EXPECT_TRUE(tokens.select(1, 31).eq(framed ? 2 : 'f').all().item<bool>()) << tokens;
    }
  }
  config_.least_tokens = 1;
  const auto stretches = MakeOfLongTexts(ObjectiveKind::kLabels);
  ASSERT_NE(stretches, nullptr);
  for (int64_t step = 0; step < 8; ++step) {
    const at::Tensor tokens = TokensOf(*stretches, config_.network, step);
    EXPECT_GE(tokens.size(1), 3);
    EXPECT_TRUE(tokens.select(1, 0).eq(1).all().item<bool>()) << tokens;
    EXPECT_TRUE(tokens.select(1, -1).eq(2).all().item<bool>()) << tokens;
  }
}

TEST_F(ExamplesTest, PairsCompareTheVectorsOfTheNetworksPooling) {
  const double alone = LossOfLetters("", "");
  EXPECT_GT(std::abs(LossOfLetters("", "xyz") - alone), 1e-3);
  config_.network.pooling = Pooling::kFirst;
  EXPECT_NEAR(LossOfLetters("", "xyz"), alone, 1e-4);
  config_.network.pooling = Pooling::kLast;
  EXPECT_NEAR(LossOfLetters("xyz", ""), alone, 1e-4);
  EXPECT_NEAR(LossOfLetters("", ""), alone, 1e-4);
}

// Each text repeats one letter, and tokens have no positions. So a letter alone has the vector of
// its repetitions, unless it also reads the padding that fills it up to the longer texts.
TEST_F(ExamplesTest, PairsDoNotReadThePaddingOfAShorterText) {
  const TrainNetwork network(config_.network,
                             StartValues(config_.network, {.seed = 1, .spread = 0.3}));
  std::vector<double> losses;
  for (const size_t letters : {1, 4}) {  // in each second text; a first one has four
    std::string lines;
    for (size_t i = 0; i < 16; ++i) {
      absl::StrAppend(&lines, R"({"a": ")", std::string(4, kAlphabet[i]), R"(", "b": ")",
                      std::string(letters, kAlphabet[25 - i]), "\"}\n");
    }
    const std::unique_ptr<Objective> objective = Make(ObjectiveKind::kPairs, lines);
    ASSERT_NE(objective, nullptr);
    losses.push_back(objective->Measure(network, Objective::Extent::kAll)[0]);
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-4);
}

// So high a temperature makes all four texts of a batch equally likely.
TEST_F(ExamplesTest, TheTemperatureDividesTheCosines) {
  config_.temperature = 1e6;
  EXPECT_NEAR(LossOfLetters("", ""), std::log(4.0), 1e-3);
}

TEST(MeanOfTokensTest, LeavesPaddingOut) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  const at::Tensor values = at::tensor({1.0F, 3.0F, 5.0F}).view({1, 3, 1});
  EXPECT_EQ(MeanOfTokens(values, {}).item<float>(), 3);
  EXPECT_EQ(MeanOfTokens(values, at::tensor({0.0F, 0.0F, kHidden}).view({1, 3})).item<float>(), 2);
}

TEST(EpochOrderTest, EveryExampleOnceAnEpochInANewOrder) {
  EpochOrder order(10, 3, 1);
  EXPECT_EQ(order.steps_per_epoch(), 3);
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t>& seen = epochs.emplace_back();
    for (int64_t step = 0; step < 3; ++step) {
      for (const int64_t i : order.Get(3 * epoch + step)) seen.push_back(i);
    }
    std::vector<int64_t> sorted = seen;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
    EXPECT_TRUE(sorted.front() >= 0 && sorted.back() < 10);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_EQ(EpochOrder(10, 3, 1).Get(4), order.Get(4)) << "whatever was asked before";
  EXPECT_NE(EpochOrder(10, 3, 2).Get(0), order.Get(0));
  EXPECT_EQ(EpochOrder(2, 8, 1).batch(), 2);
}

}  // namespace
}  // namespace aft
