// Tests the shipped classifier, with its real weights, on all images that it was not trained on.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/api/load.h"
#include "model/checkpoint/checkpoint.h"
#include "model/train/images.h"
#include "model/train/start_values.h"
#include "model/train/train_network.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

const std::string kFolder = "model/zoo/digits-aft-conv/";
constexpr int64_t kImages = 359;
constexpr int64_t kRight = 343;  // correctly classified images, as the card says
constexpr size_t kPixels = 64;
constexpr size_t kLabels = 10;

class DigitsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto checkpoint = ReadCheckpoint(kFolder);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    auto images = ReadImages(kFolder + "held_out.csv", checkpoint_.config, 8);
    ASSERT_TRUE(images.ok()) << images.status();
    images_ = *std::move(images);
    ASSERT_EQ(images_.count(), kImages);
  }

  // Logits of all images, served in batches of several.
  std::vector<float> Serve(const std::string& format) const {
    LoadOptions options;
    options.checkpoint_dir = kFolder;
    options.weight_format = format;
    const auto model = LoadModel(options);
    EXPECT_TRUE(model.ok()) << model.status();
    const int64_t* pixel = images_.pixels.const_data_ptr<int64_t>();
    std::vector<float> logits;
    for (int64_t first = 0; first < kImages; first += 30) {
      std::vector<EncoderInput> batch(static_cast<size_t>(std::min<int64_t>(30, kImages - first)));
      for (EncoderInput& image : batch) {
        image.text.assign(pixel, pixel + kPixels);
        image.image_width = 8;
        pixel += kPixels;
      }
      const auto answers = model->encoder->Encode(batch);
      EXPECT_TRUE(answers.ok()) << answers.status();
      for (const TokenVectors& tokens : *answers) {
        std::vector<double> sums(kLabels);
        for (size_t i = 0; i < tokens.size(); ++i) sums[i % kLabels] += double{tokens[i]};
        for (const double sum : sums) logits.push_back(static_cast<float>(sum / kPixels));
      }
    }
    return logits;
  }

  int64_t Right(const std::vector<float>& logits) const {
    int64_t right = 0;
    for (int64_t i = 0; i < kImages; ++i) {
      const auto row = logits.begin() + i * int64_t{kLabels};
      const auto best = std::max_element(row, row + kLabels) - row;
      right += best == images_.classes[i].item<int64_t>() ? 1 : 0;
    }
    return right;
  }

  Checkpoint checkpoint_;
  LabelledImages images_;
};

TEST_F(DigitsTest, ReadsUnseenDigitsAsItsCardSays) {
  EXPECT_GE(Right(Serve("fp32")), kRight);
  std::stringstream card;
  card << std::ifstream(kFolder + "card.md").rdbuf();
  EXPECT_THAT(card.str(), testing::HasSubstr(absl::StrCat(kRight, " of ", kImages)));
}

TEST_F(DigitsTest, SmallerWeightsReadThemNearlyAsWell) {
  EXPECT_GE(Right(Serve("bf16")), kRight - 2);
  EXPECT_GE(Right(Serve("int8")), kRight - 3);
}

TEST_F(DigitsTest, ServesWhatWasTrained) {
  const at::NoGradGuard no_grad;
  TrainNetwork network(checkpoint_.config, StartValues(checkpoint_.config, {.seed = 0}));
  for (auto& [name, tensor] : network.parameters()) tensor.copy_(checkpoint_.tensors.at(name));
  const at::Tensor trained =
      network.Forward(images_.pixels.flatten(1), nullptr, {.bf16 = false, .grid_width = 8})
          .mean(1)
          .contiguous();
  const std::vector<float> served = Serve("fp32");
  ASSERT_EQ(trained.numel(), static_cast<int64_t>(served.size()));
  float worst = 0;
  for (size_t i = 0; i < served.size(); ++i) {
    worst = std::max(worst, std::abs(served[i] - trained.const_data_ptr<float>()[i]));
  }
  EXPECT_LT(worst, tolerance::kLogits.each);
}

}  // namespace
}  // namespace aft
