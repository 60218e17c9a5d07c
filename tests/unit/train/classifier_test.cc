// Whole runs of a tiny classifier on images that only their places tell apart.

#include "model/train/classifier.h"

#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/equal.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "tests/property/random_inputs.h"
#include "tests/support/mixer_of.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using testing::HasSubstr;

class ClassifierTest : public testing::Test {
 protected:
  ClassifierTest() {
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

  // Two pixels beside or above each other, anywhere in 4 x 4: the same pixels, in other places.
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

  std::vector<Epoch> Train(const std::string& out, std::atomic<bool>* stop = nullptr) {
    std::atomic<bool> never = false;
    std::vector<Epoch> epochs;
    const auto images = ReadSplit(config_);
    EXPECT_TRUE(images.ok()) << images.status();
    const absl::Status status =
        TrainClassifier(config_, *images, folder_.File(out), stop != nullptr ? *stop : never,
                        [&](const Epoch& epoch) {
                          epochs.push_back(epoch);
                          if (stop != nullptr) *stop = true;
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

TEST_F(ClassifierTest, LearnsWhatOnlyPlacesTellApart) {
  WritePairs(240);
  const std::vector<Epoch> epochs = Train("run");
  ASSERT_EQ(epochs.size(), 8U);
  EXPECT_LT(epochs.back().train_loss, 0.2);
  EXPECT_GE(epochs.back().held_out.accuracy, 0.95);
  // The checkpoint is the network that was measured last.
  const auto checkpoint = ReadCheckpoint(folder_.File("run"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(FormatNetworkConfig(checkpoint->config), FormatNetworkConfig(config_.network));
  TrainNetwork network(checkpoint->config, 0);
  for (auto& [name, tensor] : network.parameters()) tensor = checkpoint->tensors.at(name);
  const ClassifierScore again = MeasureClassifier(network, ReadSplit(config_)->held_out);
  EXPECT_EQ(again.accuracy, epochs.back().held_out.accuracy);
  EXPECT_NEAR(again.loss, epochs.back().held_out.loss, 1e-6);
  const TrainNetwork fresh(config_.network, config_.seed, config_.weight_spread);
  for (const auto& [name, trained] : checkpoint->tensors) {
    if (name == "embed.weight") continue;  // the image has no pixel 1
    EXPECT_FALSE(at::equal(trained, fresh.parameters().at(name))) << name << " stayed";
  }
  std::ifstream curve(folder_.File("run/curve.csv"));
  std::string line;
  int lines = 0;
  while (std::getline(curve, line)) ++lines;
  EXPECT_EQ(lines, 9);
}

TEST_F(ClassifierTest, TheSameConfigGivesTheSameWeights) {
  WritePairs(60);
  config_.epochs = 2;
  config_.shift = 1;
  config_.noise = 1;
  Train("one");
  Train("two");
  config_.seed = 2;
  Train("other");
  const TensorMap one = ReadCheckpoint(folder_.File("one"))->tensors;
  const TensorMap two = ReadCheckpoint(folder_.File("two"))->tensors;
  const TensorMap other = ReadCheckpoint(folder_.File("other"))->tensors;
  for (const auto& [name, tensor] : one) {
    EXPECT_TRUE(at::equal(tensor, two.at(name))) << name;
    EXPECT_FALSE(at::equal(tensor, other.at(name))) << name;
  }
}

TEST_F(ClassifierTest, StopsAfterAnEpochAndSavesIt) {
  WritePairs(40);
  std::atomic<bool> stop = false;
  EXPECT_EQ(Train("run", &stop).size(), 1U);
  EXPECT_TRUE(ReadCheckpoint(folder_.File("run")).ok());
}

TEST_F(ClassifierTest, TheLastImagesAreHeldOut) {
  WritePairs(10);
  const auto all = ReadImages(config_.images, config_.network, 4);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->pixels.sizes(), (std::vector<int64_t>{10, 4, 4}));
  const auto split = ReadSplit(config_);
  ASSERT_TRUE(split.ok());
  EXPECT_TRUE(at::equal(split->train.pixels, all->pixels.slice(0, 0, 8)));
  EXPECT_TRUE(at::equal(split->held_out.pixels, all->pixels.slice(0, 8, 10)));
  EXPECT_TRUE(at::equal(split->held_out.classes, all->classes.slice(0, 8, 10)));
  WritePairs(3);
  EXPECT_THAT(ReadSplit(config_), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("3 images are too few to hold any out")));
}

TEST_F(ClassifierTest, FaultsNameTheLine) {
  EXPECT_TRUE(Reads("0,1,2,0,row\n2,2,2,2,column\n").ok());
  EXPECT_TRUE(Reads("0,1,2,0,row").ok());
  const std::pair<const char*, const char*> faults[] = {
      {"", "has no images"},
      {"0,1,2,0,row\n\n", "line 2: has 0 pixels, the first line 4"},
      {"0,1,2,0,row\n0,1,2,row\n", "line 2: has 3 pixels, the first line 4"},
      {"row\n", "line 1: 0 pixels are no image of 4 columns"},
      {"0,1,2,row\n", "line 1: 3 pixels are no image of 4 columns"},
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
  EXPECT_THAT(ReadSplit(config_), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.csv")));
}

}  // namespace
}  // namespace aft
