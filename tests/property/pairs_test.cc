// Tests masks of pairs, and queries with separate keys and values, for bare mixers and for encoders
// that take them. Runs on every device; a device that does not take them must refuse them.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/close.h"
#include "tests/support/mixer_of.h"
#include "tests/support/same_bits.h"
#include "tests/support/status_matchers.h"

namespace aft {
namespace {

using testing::HasSubstr;

constexpr float kHidden = -std::numeric_limits<float>::infinity();

class PairsFixture : public RunnerFixture {
 protected:
  PairsFixture() {
    options_.max_batch_rows = 12;
    options_.max_batch_tokens = 600;
  }

  std::vector<float> Normals(int64_t tokens) { return random_.Normals(tokens * config_.d_model); }
  EncoderInput Vectors(int64_t tokens) {
    EncoderInput input = {.vectors = Normals(tokens)};
    if (config_.mixer.grid) input.image_width = tokens % 7 == 0 ? 7 : 1;
    return input;
  }
  EncoderInput Apart(int64_t queries, int64_t keys) {
    EncoderInput input = Vectors(queries);
    if (!forms_.keyless) input.keys = Normals(keys);
    input.values = Normals(keys);
    return input;
  }
  // At random, a third of the pairs are hidden and a fifth have a number. One query sees nothing.
  void MaskPairs(EncoderInput& input) {
    const int64_t queries = input.tokens(config_.d_model);
    const int64_t keys = input.key_tokens(config_.d_model);
    std::vector<float> pairs(static_cast<size_t>(queries * keys));
    for (float& pair : pairs) {
      pair = random_.Below(5) == 0 ? static_cast<float>(random_.Normal()) : 0.0F;
      if (random_.Below(3) == 0) pair = random_.Below(2) == 0 ? kHidden : -1e30F;
    }
    std::fill_n(pairs.begin() + queries / 2 * keys, keys, kHidden);
    input.pairs = std::make_shared<const std::vector<float>>(std::move(pairs));
  }
  std::unique_ptr<EncoderRunner> LoadForms() {
    std::unique_ptr<EncoderRunner> runner = LoadEncoder();
    forms_ = runner->info().forms;
    return runner;
  }

  EncoderForms forms_;
};

class MixerPairsTest : public PairsFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  MixerPairsTest() { config_ = GetParam().config; }
};

TEST_P(MixerPairsTest, MasksOfPairsEqualFloat64) {
  const std::unique_ptr<EncoderRunner> mixer = LoadForms();
  for (const int64_t tokens : {1, 7, 35, 63}) {
    EncoderInput input = Vectors(tokens);
    MaskPairs(input);
    if (!forms_.pairs) {
      EXPECT_THAT(mixer->Encode({input}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   HasSubstr("pairs: only on the CPU")));
      continue;
    }
    EXPECT_TRUE(Close(Run(*mixer, {input}), Want(input), device_.vectors)) << tokens;
    // A mask that hides nothing gives the same result as no mask.
    const std::vector<double> plain =
        Want({.vectors = input.vectors, .image_width = input.image_width});
    input.pairs = std::make_shared<const std::vector<float>>(static_cast<size_t>(tokens * tokens));
    EXPECT_TRUE(Close(Run(*mixer, {input}), plain, device_.vectors)) << tokens;
  }
}

TEST_P(MixerPairsTest, QueriesKeysAndValuesOfTheirOwnEqualFloat64) {
  const std::unique_ptr<EncoderRunner> mixer = LoadForms();
  if (!forms_.sources) {
    EXPECT_THAT(mixer->Encode({Apart(7, 7)}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("keys and values: only")));
    return;
  }
  for (const int64_t tokens : {1, 7, 35, 63}) {
    EncoderInput input = Apart(tokens, tokens);
    EXPECT_TRUE(Close(Run(*mixer, {input}), Want(input), device_.vectors)) << tokens;
    input.mask.assign(static_cast<size_t>(tokens), 0.0F);
    for (float& key : input.mask) key = random_.Below(3) == 0 ? kHidden : 0.5F;
    EXPECT_TRUE(Close(Run(*mixer, {input}), Want(input), device_.vectors)) << tokens;
    input.mask.clear();
    MaskPairs(input);
    EXPECT_TRUE(Close(Run(*mixer, {input}), Want(input), device_.vectors)) << tokens;
    // Keys and values that equal the vectors give the same result as the vectors alone.
    input = Vectors(tokens);
    const std::vector<float> alone = Run(*mixer, {input});
    input.values = input.vectors;
    if (!forms_.keyless) input.keys = input.vectors;
    EXPECT_TRUE(SameBits(Run(*mixer, {input}), alone)) << tokens;
  }
}

TEST_P(MixerPairsTest, KeysMayBeMoreOrFewerThanQueriesIfNoPositionTiesThem) {
  const std::unique_ptr<EncoderRunner> mixer = LoadForms();
  if (!forms_.sources) return;
  for (const auto& [queries, keys] : {std::pair{5, 40}, {40, 5}, {1, 2}, {33, 1}}) {
    EncoderInput input = Apart(queries, keys);
    if (!forms_.free_lengths) {
      EXPECT_THAT(mixer->Encode({input}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   HasSubstr("keys and values: their sizes")));
      continue;
    }
    EXPECT_TRUE(Close(Run(*mixer, {input}), Want(input), device_.vectors)) << queries;
    input.mask.assign(static_cast<size_t>(keys), -1.0F);
    input.mask[0] = kHidden;
    EXPECT_TRUE(Close(Run(*mixer, {input}), Want(input), device_.vectors)) << queries;
    input.mask.clear();
    MaskPairs(input);
    EXPECT_TRUE(Close(Run(*mixer, {input}), Want(input), device_.vectors)) << queries;
  }
}

TEST_P(MixerPairsTest, NeighboursOfEveryFormAndThreadsChangeNoBit) {
  LoadForms();
  if (!forms_.sources) return;
  std::vector<EncoderInput> inputs;
  for (const int64_t tokens : {35, 7, 49}) {
    inputs.push_back(Vectors(tokens));
    inputs.push_back(Vectors(tokens));
    MaskPairs(inputs.back());
    inputs.push_back(Apart(tokens, tokens));
    inputs.push_back(Apart(tokens, forms_.free_lengths ? tokens + 9 : tokens));
    MaskPairs(inputs.back());
  }
  ExpectNeighboursAndThreadsChangeNothing(inputs);
}

// A hidden token may have any numbers: a NaN reaches only the queries that see it.
TEST_P(MixerPairsTest, HiddenPairsLeaveNoTrace) {
  const std::unique_ptr<EncoderRunner> mixer = LoadForms();
  if (!forms_.pairs) return;
  EncoderInput input = Vectors(14);
  auto pairs = std::make_shared<std::vector<float>>(14 * 14, 0.0F);
  for (int64_t query = 0; query < 14; ++query) {
    if (query != 3 && query != 9) (*pairs)[static_cast<size_t>(query * 14 + 3)] = kHidden;
  }
  input.pairs = pairs;
  const std::vector<float> clean = Run(*mixer, {input});
  const int64_t d = config_.d_model;
  std::fill_n(input.vectors.begin() + 3 * d, d, std::nanf(""));
  const std::vector<float> got = Run(*mixer, {input});
  for (int64_t query = 0; query < 14; ++query) {
    if (query == 3 || query == 9) continue;
    EXPECT_TRUE(SameBits(Tokens(got, d, query, query + 1), Tokens(clean, d, query, query + 1)))
        << query;
  }
  EXPECT_TRUE(std::isnan(got[static_cast<size_t>(3 * d)]));
}

INSTANTIATE_TEST_SUITE_P(Property, MixerPairsTest, testing::ValuesIn(TestedCases(BareMixerCases())),
                         [](const auto& tested) { return tested.param.name; });

class EncoderPairsTest : public PairsFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  EncoderPairsTest() { config_ = GetParam().config; }
};

TEST_P(EncoderPairsTest, MasksOfPairsHoldInEveryLayer) {
  const std::unique_ptr<EncoderRunner> encoder = LoadForms();
  EXPECT_FALSE(forms_.sources);
  if (!forms_.pairs) return;
  EncoderInput text = {RandomText(33)};
  MaskPairs(text);
  EXPECT_TRUE(Close(Run(*encoder, {text}), Want(text), device_.vectors));
  EncoderInput vectors = Vectors(33);
  MaskPairs(vectors);
  EXPECT_TRUE(Close(Run(*encoder, {vectors}), Want(vectors), device_.vectors));
}

INSTANTIATE_TEST_SUITE_P(Property, EncoderPairsTest, testing::ValuesIn(TestedCases(EncoderCases())),
                         [](const auto& tested) { return tested.param.name; });

class PairRulesTest : public PairsFixture {
 protected:
  PairRulesTest() {
    for (const NetworkCase& one : BareMixerCases()) {
      if (one.name == "dot_product") config_ = one.config;
    }
  }
};

TEST_F(PairRulesTest, WeightsOfEveryFormatAreAppliedInParts) {
  for (const char* const format : {"fp32", "bf16", "int8"}) {
    options_.weight_format = format;
    const std::unique_ptr<EncoderRunner> mixer = LoadForms();
    if (!forms_.sources) return;
    EncoderInput input = Vectors(35);
    const std::vector<float> alone = Run(*mixer, {input});
    input.keys = input.values = input.vectors;
    EXPECT_TRUE(SameBits(Run(*mixer, {input}), alone)) << format;
  }
}

// EncodePairs agrees with Encode for mixers that see blocks, round keys and values, or have large
// biases.
TEST_F(PairRulesTest, AMaskThatHidesNothingChangesNothing) {
  config_.max_seq_len = 0;
  for (const auto& [mixer, spread] : {std::pair("aft_local window=5 prefix_block=8", 1),
                                      {"aft_local window=5 ring=bf16", 1},
                                      {"aft_local window=1 ring=bf16", 1},  // rounds nothing
                                      {"aft_conv heads=2 window=5 ring=bf16", 1},
                                      {"aft_local window=5", 100}}) {
    SCOPED_TRACE(mixer);
    config_.mixer = MixerOf(mixer);
    Write();
    for (auto& [name, tensor] : tensors_) {
      if (absl::StrContains(name, ".w.band")) tensor.mul_(spread);
    }
    Rewrite();
    const std::unique_ptr<EncoderRunner> runner = LoadForms();
    if (!forms_.pairs) return;
    EncoderInput input = Vectors(35);
    const std::vector<float> alone = Run(*runner, {input});
    input.pairs = std::make_shared<const std::vector<float>>(35 * 35);
    EXPECT_TRUE(Close(Run(*runner, {input}), std::vector<double>(alone.begin(), alone.end()),
                      device_.vectors));
  }
}

// A query or key of zeros has no length to divide by.
TEST_F(PairRulesTest, CosinesOfZerosAreZero) {
  config_.mixer = MixerOf("cosine heads=2 causal=false");
  config_.qkv_bias = false;
  const std::unique_ptr<EncoderRunner> mixer = LoadForms();
  if (!forms_.pairs) return;
  EncoderInput input = Vectors(9);
  std::fill_n(input.vectors.begin() + 3 * config_.d_model, 2 * config_.d_model, 0.0F);
  input.pairs = std::make_shared<const std::vector<float>>(9 * 9);
  EXPECT_TRUE(Close(Run(*mixer, {input}), Want(input), device_.vectors));
}

TEST_F(PairRulesTest, InputsThatDoNotFitAreRefused) {
  const std::unique_ptr<EncoderRunner> mixer = LoadForms();
  EXPECT_EQ(forms_.pairs, device_.same_bits);  // same_bits is true on the CPU only
  EXPECT_EQ(forms_.sources, device_.same_bits);
  if (!forms_.sources) return;
  const auto refused = [&](const EncoderInput& input, const std::string& why) {
    EXPECT_THAT(mixer->Encode({Vectors(7), input}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sequence 1: " + why)));
  };
  EncoderInput input = Apart(3, 4);
  EXPECT_TRUE(mixer->Encode({input}).ok());
  input.keys.resize(input.keys.size() - 1);
  refused(input, "keys and values: their sizes");
  input.keys.clear();
  refused(input, "keys and values: their sizes");
  input = Vectors(3);
  input.keys = Normals(3);
  refused(input, "keys and values: only");
  input = Apart(3, 4);
  input.mask.resize(3);
  refused(input, "a mask of 3 for 4 tokens");
  input = Vectors(3);
  input.pairs = std::make_shared<const std::vector<float>>(8);
  refused(input, "pairs: ");
  MaskPairs(input);
  input.mask.resize(3);
  refused(input, "pairs: ");
  EXPECT_THAT(mixer->Encode({Apart(300, 301)}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("601 tokens in a batch of at most 600")));
}

}  // namespace
}  // namespace aft
