// Tests encoders, which turn whole texts into vectors. Runs on every device.

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/api/pooling.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/close.h"
#include "tests/support/status_matchers.h"

namespace aft {
namespace {

using testing::HasSubstr;

class EncoderFixture : public RunnerFixture {
 protected:
  EncoderFixture() {
    options_.max_batch_rows = 9;
    options_.max_batch_tokens = 200;
  }
};

class EveryEncoderTest : public EncoderFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  EveryEncoderTest() { config_ = GetParam().config; }
};

TEST_P(EveryEncoderTest, EqualsFloat64) {
  const std::unique_ptr<EncoderRunner> encoder = LoadEncoder();
  for (const int64_t length : {int64_t{1}, int64_t{8}, int64_t{33}, kCaseTokens}) {
    const std::vector<TokenId> text = RandomText(length);
    const std::vector<double> want = Flat(NetworkReference(config_, tensors_, text));
    EXPECT_TRUE(Close(Encode(*encoder, {text}), want, device_.vectors)) << length << " tokens";
  }
}

TEST_P(EveryEncoderTest, NeighboursAndThreadsChangeNoBit) {
  std::vector<std::vector<TokenId>> texts;
  for (int i = 0; i < 9; ++i) texts.push_back(RandomText(1 + random_.Below(22)));
  ExpectNeighboursAndThreadsChangeNothing(TextInputs(texts));
}

INSTANTIATE_TEST_SUITE_P(Property, EveryEncoderTest, testing::ValuesIn(EncoderCases()), CaseName);

class EncoderTest : public EncoderFixture {};

class ImageEncoderTest : public EncoderFixture, public testing::WithParamInterface<bool> {
 protected:
  ImageEncoderTest() {
    config_ = ImageCase().config;
    if (GetParam()) config_.labels = {"0", "1", "2", "3", "4"};
  }
  EncoderInput Image(int64_t height, int64_t width) {
    return {.text = RandomText(height * width), .image_width = width};
  }
};

TEST_P(ImageEncoderTest, EqualsFloat64WhateverTheBatch) {
  const std::unique_ptr<EncoderRunner> encoder = LoadEncoder();
  EXPECT_EQ(encoder->input_width(), 40);
  EXPECT_EQ(encoder->width(), GetParam() ? 5 : 40);
  EXPECT_EQ(encoder->info().labels, config_.labels);
  EXPECT_GT(encoder->info().max_image_width, 0);
  // The images have two widths, and therefore need two passes.
  const std::vector<EncoderInput> images = {Image(8, 8), Image(1, 1), Image(3, 7), Image(4, 8)};
  std::vector<std::vector<float>> alone;
  for (const EncoderInput& image : images) {
    alone.push_back(Run(*encoder, {image}));
    EXPECT_TRUE(Close(alone.back(), Want(image), device_.vectors)) << image.image_width;
  }
  EXPECT_TRUE(Same(Run(*encoder, images), Flat(alone)));
}

// With another width the same pixels are another image.
TEST_P(ImageEncoderTest, AnImageHasAWidth) {
  const std::unique_ptr<EncoderRunner> encoder = LoadEncoder();
  EncoderInput image = Image(4, 8);
  const std::vector<float> vectors = Run(*encoder, {image});
  image.image_width = 4;
  EXPECT_NE(Run(*encoder, {image}), vectors);
  image.image_width = 0;
  EXPECT_THAT(encoder->Encode({image}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("an image of 0 columns")));
}

INSTANTIATE_TEST_SUITE_P(Classifiers, ImageEncoderTest, testing::Bool());

TEST_F(EncoderTest, RefusesWhatBreaksTheRules) {
  config_ = EncoderCases()[4].config;
  config_.max_seq_len = 50;
  const std::unique_ptr<EncoderRunner> encoder = LoadEncoder();
  const auto refused = [&](const std::vector<std::vector<TokenId>>& texts, const std::string& why) {
    EXPECT_THAT(encoder->Encode(TextInputs(texts)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused({{1}, {1, 256}}, "sequence 1: token 256 is out of range");
  refused({RandomText(51)}, "sequence 0: 51 tokens; max_seq_len is 50");
  refused(std::vector<std::vector<TokenId>>(10, {1}), "10 sequences in a batch of at most 9");
  refused(std::vector<std::vector<TokenId>>(9, RandomText(23)),
          "207 tokens in a batch of at most 200");
  EXPECT_TRUE(Encode(*encoder, {}).empty());
}

TEST_F(EncoderTest, ReportsWhatTheServerMayKnow) {
  config_ = EncoderCases()[4].config;
  config_.pooling = Pooling::kFirst;
  config_.normalize = true;
  const std::unique_ptr<EncoderRunner> encoder = LoadEncoder();
  EXPECT_EQ(encoder->info().architecture, "block_local");
  EXPECT_EQ(encoder->info().pooling, Pooling::kFirst);
  EXPECT_TRUE(encoder->info().normalize);
  EXPECT_EQ(encoder->info().state_bytes, 0);
  EXPECT_NE(encoder->info().fingerprint, 0U);
  EXPECT_EQ(encoder->info().parameters, CountParameters(config_));
  EXPECT_EQ(encoder->width(), 40);
  EXPECT_EQ(encoder->max_batch_rows(), 9);
  EXPECT_EQ(encoder->max_batch_tokens(), 200);
}

}  // namespace
}  // namespace aft
