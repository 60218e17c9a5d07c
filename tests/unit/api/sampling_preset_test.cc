// Tests SamplingOptions.preset.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizers.h"
#include "server/api/aft/generate_codec.h"
#include "tests/support/proto_text.h"
#include "tests/unit/api/decode.h"

namespace aft::server {
namespace {

using testing::ElementsAre;

absl::StatusOr<SamplingParams> WithPreset(const std::string& sampling,
                                          const ModelFacts& facts = {}) {
  const auto request = Decode<GenerateCodec>(
      FromText<v1::GenerateRequest>("tokens { ids: 1 } sampling { " + sampling + " }"), facts);
  if (!request.ok()) return request.status();
  return request->sampling;
}

std::vector<TokenId> Uncounted(const SamplingParams& sampling) {
  std::vector<TokenId> ids;
  for (const LogitRule& rule : sampling.rules->rules) {
    if (rule.uncounted == 1) ids.push_back(rule.id);
  }
  return ids;
}

TEST(SamplingPresetTest, ChangesTheDefaults) {
  const auto sampling = WithPreset("preset: 'rwkv'");
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_EQ(sampling->temperature, 1.0F);
  EXPECT_EQ(sampling->top_p, 0.85F);
  EXPECT_EQ(sampling->presence_penalty, 0.2F);
  EXPECT_EQ(sampling->frequency_penalty, 0.2F);
  EXPECT_EQ(sampling->penalty_decay, 0.996F);
  EXPECT_TRUE(sampling->temperature_last);
  const auto given = WithPreset(
      "preset: 'rwkv' top_p: 1 presence_penalty: 0 frequency_penalty: 0 penalty_decay: 0.5 "
      "temperature_last: false");
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->top_p, 1.0F);
  EXPECT_EQ(given->presence_penalty, 0.0F);
  EXPECT_EQ(given->frequency_penalty, 0.0F);
  EXPECT_EQ(given->penalty_decay, 0.5F);
  EXPECT_FALSE(given->temperature_last);
}

TEST(SamplingPresetTest, AnotherNameIsRefused) {
  EXPECT_EQ(
      WithPreset("preset: 'RWKV'").status(),
      absl::InvalidArgumentError("sampling.preset: must be one of \"rwkv\", \"\", got \"RWKV\""));
  // gRPC sends no message of more than 8 KiB.
  EXPECT_LT(WithPreset("preset: '" + std::string(9000, 'x') + "'").status().message().size(), 300U);
}

TEST(SamplingPresetTest, RulesOfTheRequestRemain) {
  const auto sampling =
      WithPreset("preset: 'rwkv' banned_tokens: 49 logit_bias { key: 50 value: 2 }");
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_THAT(Uncounted(*sampling), ElementsAre(9, 32, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57));
  EXPECT_EQ(sampling->rules->rules[2].bias, 0.0F);
  EXPECT_EQ(sampling->rules->rules[3].bias, kBannedBias);
  EXPECT_EQ(sampling->rules->rules[4].bias, 2.0F);
  const auto allowed = WithPreset("preset: 'rwkv' allowed_tokens: [48, 100]");
  ASSERT_TRUE(allowed.ok()) << allowed.status();
  EXPECT_TRUE(allowed->rules->only_these);
  EXPECT_EQ(allowed->rules->rules.size(), 2U);
  EXPECT_THAT(Uncounted(*allowed), ElementsAre(48));
}

// These are the tokens for which `decode([token]) in ' \t0123456789'` holds in the package.
TEST(SamplingPresetTest, SparesTheTokensOfTheWorldVocabularyThatThePackageSpares) {
  const auto world = LoadWorldTokenizer("model/tokenizer/world/rwkv_vocab_v20230424.txt");
  ASSERT_TRUE(world.ok()) << world.status();
  const auto sampling = WithPreset("preset: 'rwkv'", {.tokenizer = *world});
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_THAT(Uncounted(*sampling), ElementsAre(10, 33, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 264,
                                                621, 632, 643, 654, 665, 676, 687, 698, 709));
}

TEST(SamplingPresetTest, TheTokenForUnknownCharactersIsNotSpared) {
  const auto sampling = WithPreset(
      "preset: 'rwkv'", {.tokenizer = *MakeCharTokenizer({kUnknownCharacter, "1", "a"})});
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_THAT(Uncounted(*sampling), ElementsAre(1));
}

}  // namespace
}  // namespace aft::server
