// Tests vectors as input, with and without masks, and images: for bare mixers, and for encoders
// that get vectors instead of ids. Runs on every device.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/close.h"
#include "tests/support/same_bits.h"
#include "tests/support/status_matchers.h"

namespace aft {
namespace {

using testing::HasSubstr;

constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class TensorsFixture : public RunnerFixture {
 protected:
  TensorsFixture() {
    options_.max_batch_rows = 9;
    options_.max_batch_tokens = 400;
  }

  // Vectors of `tokens` tokens; an image of `columns` if the model takes images.
  EncoderInput Vectors(int64_t tokens, int64_t columns = 1) {
    EncoderInput input = {.vectors = random_.Normals(tokens * config_.d_model)};
    if (config_.mixer.grid) input.image_width = columns;
    return input;
  }
  // Hides about a third of the tokens, at random places.
  void HideSome(EncoderInput& input) {
    input.mask.assign(static_cast<size_t>(input.tokens(config_.d_model)), 0.0F);
    for (float& key : input.mask) {
      if (random_.Below(3) == 0) key = kHidden;
    }
  }
  // Inputs of several lengths, some with masks.
  std::vector<EncoderInput> Mixed() {
    const std::pair<int64_t, int64_t> sizes[] = {{1, 1},  {35, 7}, {7, 7},  {13, 1}, {96, 12},
                                                 {24, 8}, {35, 7}, {49, 7}, {5, 5}};
    std::vector<EncoderInput> inputs;
    for (const auto& [tokens, columns] : sizes) {
      inputs.push_back(Vectors(tokens, columns));
      if (random_.Below(2) == 0) HideSome(inputs.back());
    }
    return inputs;
  }
};

class EveryMixerTest : public TensorsFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  EveryMixerTest() { config_ = GetParam().config; }
};

TEST_P(EveryMixerTest, EqualsFloat64) {
  const std::unique_ptr<EncoderRunner> mixer = LoadEncoder();
  for (const auto& [tokens, columns] :
       {std::pair{1, 1}, {7, 7}, {33, 11}, {33, 3}, {35, 1}, {static_cast<int>(kCaseTokens), 8}}) {
    if (tokens == 35 && !config_.mixer.grid) continue;  // without a grid columns do not matter
    EncoderInput input = Vectors(tokens, columns);
    EXPECT_TRUE(Close(Run(*mixer, {input}), Want(input), device_.vectors)) << tokens;
    HideSome(input);
    EXPECT_TRUE(Close(Run(*mixer, {input}), Want(input), device_.vectors)) << tokens;
    for (float& key : input.mask) key = static_cast<float>(random_.Normal());
    EXPECT_TRUE(Close(Run(*mixer, {input}), Want(input), device_.vectors)) << tokens;
  }
}

TEST_P(EveryMixerTest, NeighboursOfAnySizeAndThreadsChangeNoBit) {
  ExpectNeighboursAndThreadsChangeNothing(Mixed());
}

TEST_P(EveryMixerTest, NumbersThatAreNotFiniteStayInTheirSequence) {
  const std::unique_ptr<EncoderRunner> mixer = LoadEncoder();
  std::vector<EncoderInput> inputs = Mixed();
  const std::vector<float> clean = Run(*mixer, inputs);
  std::vector<EncoderInput> spoilt = inputs;
  size_t next = 0;  // every other input gets one of these numbers
  for (const float bad : {kNan, -kNan, HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::max()}) {
    spoilt[next].mask.clear();
    std::fill(spoilt[next].vectors.begin(), spoilt[next].vectors.end(), bad);
    next += 2;
  }
  std::vector<float> got = Run(*mixer, spoilt);
  ASSERT_EQ(got.size(), clean.size());
  int64_t first = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto count = static_cast<int64_t>(inputs[i].vectors.size());
    if (i % 2 == 0) std::copy_n(clean.begin() + first, count, got.begin() + first);
    first += count;
  }
  EXPECT_TRUE(Same(got, clean));
  // With clean inputs again, all results are correct again.
  EXPECT_TRUE(Same(Run(*mixer, inputs), clean));
}

TEST_P(EveryMixerTest, HiddenTokensMayHoldAnything) {
  const std::unique_ptr<EncoderRunner> mixer = LoadEncoder();
  EncoderInput input = Vectors(35, 7);
  HideSome(input);
  input.mask[3] = kHidden;
  const std::vector<float> clean = Run(*mixer, {input});
  const int64_t d = config_.d_model;
  for (const float bad : {kNan, HUGE_VALF}) {
    for (int64_t t = 0; t < 35; ++t) {
      if (input.mask[static_cast<size_t>(t)] == kHidden) {
        std::fill_n(input.vectors.begin() + t * d, d, bad);
      }
    }
    const std::vector<float> got = Run(*mixer, {input});
    for (int64_t t = 0; t < 35; ++t) {
      if (input.mask[static_cast<size_t>(t)] == kHidden) continue;
      EXPECT_TRUE(Same(Tokens(got, d, t, t + 1), Tokens(clean, d, t, t + 1))) << t;
    }
  }
}

// Numbers up to kMaskedBelow count as -inf. A token that sees no key gives the output's bias.
TEST_P(EveryMixerTest, ATokenThatSeesNoKeyGivesTheBias) {
  const std::unique_ptr<EncoderRunner> mixer = LoadEncoder();
  EncoderInput input = Vectors(14, 7);
  const at::Tensor& bias = tensors_.at("layers.0.mixer.out.bias");
  std::vector<double> want;
  for (int t = 0; t < 14; ++t) {
    for (int64_t c = 0; c < config_.d_model; ++c) want.push_back(bias[c].item<double>());
  }
  for (const float hidden : {kHidden, -1e30F, std::numeric_limits<float>::lowest()}) {
    input.mask.assign(14, hidden);
    EXPECT_TRUE(Close(Run(*mixer, {input}), want, device_.vectors)) << hidden;
  }
}

INSTANTIATE_TEST_SUITE_P(Property, EveryMixerTest, testing::ValuesIn(TestedCases(BareMixerCases())),
                         CaseName);

class EncoderVectorsTest : public TensorsFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  EncoderVectorsTest() { config_ = GetParam().config; }
};

TEST_P(EncoderVectorsTest, EqualWhatTheEmbeddingWouldHaveMade) {
  config_.embedding_scale = 2.0F;  // exact
  const std::unique_ptr<EncoderRunner> encoder = LoadEncoder();
  std::vector<EncoderInput> texts;
  std::vector<EncoderInput> vectors;
  std::vector<EncoderInput> both;
  const float* const table = tensors_.at("embed.weight").const_data_ptr<float>();
  for (const int64_t length : {1, 33, 7, 64}) {
    texts.push_back({RandomText(length)});
    EncoderInput& input = vectors.emplace_back();
    for (const TokenId token : texts.back().text) {
      for (int64_t c = 0; c < config_.d_model; ++c) {
        input.vectors.push_back(2.0F * table[token * config_.d_model + c]);
      }
    }
    both.push_back(length % 2 == 0 ? texts.back() : vectors.back());
  }
  const std::vector<float> want = Run(*encoder, texts);
  EXPECT_TRUE(Same(Run(*encoder, vectors), want));
  EXPECT_TRUE(Same(Run(*encoder, both), want));
  for (EncoderInput& input : both) {
    HideSome(input);
    EXPECT_TRUE(Close(Run(*encoder, {input}), Want(input), device_.vectors));
  }
}

INSTANTIATE_TEST_SUITE_P(Property, EncoderVectorsTest, testing::ValuesIn(EncoderCases()), CaseName);

class MixerRulesTest : public TensorsFixture {
 protected:
  void Refused(EncoderRunner& runner, const EncoderInput& input, const std::string& why) {
    EXPECT_THAT(runner.Encode({Vectors(7, 7), input}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sequence 1: " + why)));
  }
  static NetworkConfig Case(const std::string& name) {
    for (const NetworkCase& one : BareMixerCases()) {
      if (one.name == name) return one.config;
    }
    ADD_FAILURE() << name;
    return {};
  }
};

TEST_F(MixerRulesTest, SaysWhatItTakesAndRefusesTheRest) {
  config_ = Case("aft_full");
  const std::unique_ptr<EncoderRunner> mixer = LoadEncoder();
  EXPECT_EQ(mixer->info().vocab_size, 0);
  EXPECT_FALSE(mixer->info().causal);
  EXPECT_EQ(mixer->info().max_image_width, 0);
  EXPECT_EQ(mixer->info().max_seq_len, kCaseTokens);
  EXPECT_EQ(mixer->info().parameters, CountParameters(config_));
  EXPECT_EQ(mixer->width(), 40);
  Refused(*mixer, {{0}}, "token 0 is out of range");
  Refused(*mixer, {}, "no tokens");
  Refused(*mixer, {.text = {0}, .vectors = random_.Normals(40)}, "has both ids and vectors");
  Refused(*mixer, {.vectors = random_.Normals(41)}, "41 numbers in vectors of 40");
  Refused(*mixer, {.vectors = random_.Normals(80), .mask = {0}}, "a mask of 1 for 2 tokens");
  Refused(*mixer, {.vectors = random_.Normals(80), .image_width = 1}, "is an image");
  Refused(*mixer, Vectors(kCaseTokens + 1), "97 tokens; max_seq_len is 96");
}

TEST_F(MixerRulesTest, ImagesHaveWholeRows) {
  config_ = Case("image");
  const std::unique_ptr<EncoderRunner> mixer = LoadEncoder();
  const int64_t widest = mixer->info().max_image_width;
  EXPECT_GE(widest, 64);
  EXPECT_LE(widest, 400);
  EXPECT_EQ(Run(*mixer, {Vectors(widest, widest)}).size(), static_cast<size_t>(widest * 40));
  const std::string allowed = " columns; must be 1 to " + std::to_string(widest);
  Refused(*mixer, Vectors(8, 0), "an image of 0" + allowed);
  Refused(*mixer, Vectors(8, -1), "an image of -1" + allowed);
  Refused(*mixer, Vectors(8, widest + 1), "an image of " + std::to_string(widest + 1) + allowed);
  Refused(*mixer, Vectors(8, 3), "8 tokens are not an image of 3 columns");
}

// A block of a GPU holds all rows of an image that a filter reaches. So the runner limits the width
// of images, and the widest allowed image must work.
TEST_F(MixerRulesTest, TheWidestImageIsComputed) {
  config_ = Case("image");
  config_.mixer.window = 63;
  options_.max_batch_tokens = 1000;
  for (const int64_t heads : {1, 4}) {  // of 40 and 10 channels
    config_.mixer.heads = heads;
    tensors_.clear();
    const std::unique_ptr<EncoderRunner> mixer = LoadEncoder();
    const int64_t widest = mixer->info().max_image_width;
    EXPECT_GE(widest, 400);
    EXPECT_EQ(widest == 1000, device_.same_bits);  // on the CPU images may be as wide as batches
    const EncoderInput input = Vectors(widest, widest);
    EXPECT_TRUE(Close(Run(*mixer, {input}), Want(input), device_.vectors)) << heads;
  }
}

TEST_F(MixerRulesTest, CausalMixersReportThatTheyAreCausal) {
  config_ = Case("causal_aft_local");
  EXPECT_TRUE(LoadEncoder()->info().causal);
}

}  // namespace
}  // namespace aft
