// Trains a tiny classifier on images that differ only in the places of their pixels.

#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/train/images.h"
#include "model/train/objective.h"
#include "model/train/start_values.h"
#include "model/train/trainer.h"
#include "tests/property/random_inputs.h"
#include "tests/support/mixer_of.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"
#include "tests/unit/train/tokens_of.h"

namespace aft {
namespace {

using testing::HasSubstr;

class ImageLabelsTest : public testing::Test {
 protected:
  ImageLabelsTest() {
    at::set_num_threads(1);  // tiny tensors: a second thread only waits
    NetworkConfig& network = config_.network;
    network.architecture = Architecture::kEncoder;
    network.vocab_size = 3;
    network.d_model = 16;
    network.n_layers = 2;
    network.d_ff = 32;
    network.mixer = MixerOf("aft_conv window=3 heads=4 grid=true causal=false");
    network.tokenizer.clear();
    network.labels = {"row", "column"};
    config_.objective = ObjectiveKind::kLabels;
    config_.images = folder_.File("images.csv");
    config_.image_width = 4;
    config_.held_out = 0.25;
    config_.epochs = 8;
    config_.batch = 8;
    config_.warmup_steps = 5;
    config_.learning_rate = 1e-2;
    config_.weight_spread = 0.2;
    config_.bf16 = false;
  }

  // Each image has two pixels in a row or in a column, anywhere in 4 x 4. Both classes have the
  // same pixels in different places.
  void WritePairs(int count) const {
    TestRandom random;
    std::ofstream file(config_.images);
    for (int i = 0; i < count; ++i) {
      const bool row = random.Below(2) == 0;
      const auto along = static_cast<size_t>(random.Below(3));
      const auto across = static_cast<size_t>(random.Below(4));
      std::vector<int> image(16, 0);
      for (size_t step : {0, 1}) {
        image[row ? across * 4 + along + step : (along + step) * 4 + across] = 2;
      }
      for (const int pixel : image) file << pixel << ',';
      file << (row ? "row" : "column") << '\n';
    }
  }

  // Trains in `out` until the run is complete or `steps` steps are done; returns the evaluations.
  std::vector<CurvePoint> Train(const std::string& out, int64_t steps = 1'000'000) {
    std::vector<CurvePoint> epochs;
    auto trainer = Trainer::Create(config_, folder_.File(out));
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    std::atomic<bool> stop = false;
    const absl::Status status = trainer->Run(
        stop, [&](const Trainer::Progress& p) { stop = p.step >= steps; },
        [&](const CurvePoint& point, bool kept) {
          epochs.push_back(point);
          EXPECT_TRUE(kept) << "the held-out figures do not choose the checkpoint";
        });
    EXPECT_TRUE(status.ok()) << status;
    return epochs;
  }

  absl::Status Reads(const std::string& lines) const {
    std::ofstream(config_.images) << lines;
    return ReadImages(config_.images, config_.network, config_.image_width).status();
  }

  const TempFolder folder_;
  TrainConfig config_;
};

TEST_F(ImageLabelsTest, LearnsClassesThatDifferOnlyInPlaces) {
  WritePairs(240);
  const std::vector<CurvePoint> epochs = Train("run");
  ASSERT_EQ(epochs.size(), 8U);
  EXPECT_LT(epochs.back().train, 0.2);
  EXPECT_GE(epochs.back().held_out[1], 0.95);
  // The checkpoint is the network that was measured last.
  const auto checkpoint = ReadCheckpoint(folder_.File("run"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(FormatNetworkConfig(checkpoint->config), FormatNetworkConfig(config_.network));
  const auto objective = MakeImageLabels(config_);
  ASSERT_TRUE(objective.ok()) << objective.status();
  EXPECT_EQ((*objective)->Describe(), "180 training images, 60 held out");
  EXPECT_EQ(
      (*objective)
          ->Measure(TrainNetwork(checkpoint->config, checkpoint->tensors), Objective::Extent::kAll),
      epochs.back().held_out);
  const TensorMap fresh = StartValues(config_.network, StartOptionsOf(config_));
  for (const auto& [name, trained] : checkpoint->tensors) {
    if (name == "embed.weight") continue;  // the images have no pixel of value 1
    EXPECT_FALSE(at::equal(trained, fresh.at(name))) << name << " stayed";
  }
  std::ifstream curve(folder_.File("run/curve.csv"));
  std::string line;
  std::getline(curve, line);
  EXPECT_EQ(line, "step,images,seconds,train_loss,held_out_loss,held_out_accuracy,learning_rate");
  int lines = 0;
  while (std::getline(curve, line)) ++lines;
  EXPECT_EQ(lines, 8);
}

TEST_F(ImageLabelsTest, TheSameConfigGivesTheSameWeightsInOneRunOrInTwo) {
  WritePairs(60);
  config_.epochs = 2;
  config_.shift = 1;
  config_.noise = 1;
  config_.dropout = 0.1;
  Train("one");
  Train("two", /*steps=*/3);
  EXPECT_EQ(Train("two").size(), 2U);
  config_.seed = 2;
  Train("other");
  const TensorMap one = ReadCheckpoint(folder_.File("one"))->tensors;
  const TensorMap two = ReadCheckpoint(folder_.File("two"))->tensors;
  const TensorMap other = ReadCheckpoint(folder_.File("other"))->tensors;
  for (const auto& [name, tensor] : one) {
    EXPECT_TRUE(at::equal(tensor, two.at(name))) << name;
    EXPECT_FALSE(at::equal(tensor, other.at(name))) << name;
  }
  WritePairs(61);
  EXPECT_THAT(Trainer::Create(config_, folder_.File("other")),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("resume.safetensors: belongs to a run with other training")));
}

TEST_F(ImageLabelsTest, AShiftMovesThePixelsToEveryPlace) {
  std::ofstream file(config_.images);
  for (int i = 0; i < 12; ++i) file << "0,0,0,0,2,0,0,0,0,row\n";
  file.close();
  config_.image_width = 3;
  config_.shift = 1;
  const auto objective = MakeImageLabels(config_);
  ASSERT_TRUE(objective.ok()) << objective.status();
  at::Tensor sums = at::zeros({9}, at::kLong);
  for (int64_t step = 0; step < 20; ++step) {
    sums += TokensOf(**objective, config_.network, step).sum(0);
  }
  EXPECT_GT(sums.min().item<int64_t>(), 0);
  EXPECT_EQ(sums.sum().item<int64_t>(), 20 * 8 * 2) << "no pixel leaves the frame";
}

TEST_F(ImageLabelsTest, NoiseChangesPixelsByUpToItsAmountBothWays) {
  std::ofstream file(config_.images);
  for (int i = 0; i < 12; ++i) file << "4,4,4,4,4,4,4,4,4,row\n";
  file.close();
  config_.network.vocab_size = 9;
  config_.image_width = 3;
  config_.noise = 2;
  const auto objective = MakeImageLabels(config_);
  ASSERT_TRUE(objective.ok()) << objective.status();
  const at::Tensor pixels = TokensOf(**objective, config_.network, 0);
  EXPECT_EQ(pixels.min().item<int64_t>(), 2);
  EXPECT_EQ(pixels.max().item<int64_t>(), 6);
}

// All training images are of one class, so the class of the held-out images cannot be learned.
TEST_F(ImageLabelsTest, TheLastImagesAreHeldOut) {
  std::ofstream file(config_.images);
  for (int i = 0; i < 12; ++i) file << "0,0,0,0," << (i < 9 ? "row" : "column") << '\n';
  file.close();
  config_.image_width = 2;
  const std::vector<CurvePoint> epochs = Train("run");
  EXPECT_LT(epochs.back().train, 0.1);
  EXPECT_EQ(epochs.back().held_out[1], 0);
  std::ofstream(config_.images) << "0,0,0,0,row\n0,0,0,0,row\n0,0,0,0,row\n";
  EXPECT_THAT(Trainer::Create(config_, folder_.File("none")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("3 images are too few to hold any out")));
}

TEST_F(ImageLabelsTest, FaultsNameTheLine) {
  EXPECT_TRUE(Reads("0,1,2,0,row\n2,2,2,2,column\n").ok());
  EXPECT_TRUE(Reads("0,1,2,0,row").ok());
  EXPECT_TRUE(Reads("0,1,2,0,row\r\n2,2,2,2,column\r\n").ok());
  const std::pair<const char*, const char*> faults[] = {
      {"", "has no images"},
      {"0,1,2,0,row\n\n", "line 2: has 0 pixels, the first line has 4"},
      {"0,1,2,0,row\n0,1,2,row\n", "line 2: has 3 pixels, the first line has 4"},
      {"row\n", "line 1: 0 pixels are not an image of 4 columns"},
      {"0,1,2,row\n", "line 1: 3 pixels are not an image of 4 columns"},
      {"0,1,2,3,row\n", "line 1: pixel 3: must be an integer in [0, 3), got 3"},
      {"0,-1,2,0,row\n", "line 1: pixel 1: must be an integer in [0, 3), got -1"},
      {"0,1.5,2,0,row\n", "pixel 1: must be an integer in [0, 3), got 1.5"},
      {"0,1,2,0,rows\n", "line 1: network.labels has no \"rows\""}};
  for (const auto& [lines, why] : faults) {
    EXPECT_THAT(Reads(lines), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  }
  config_.network.max_seq_len = 4;
  EXPECT_THAT(Reads("0,0,0,0,0,0,0,0,row\n"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("line 1: 8 pixels; network.max_seq_len is 4")));
  config_.images = folder_.File("none.csv");
  EXPECT_THAT(Trainer::Create(config_, folder_.File("run")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.csv")));
  config_.images = folder_.path();
  EXPECT_THAT(Trainer::Create(config_, folder_.File("run")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("cannot be read")));
}

}  // namespace
}  // namespace aft
