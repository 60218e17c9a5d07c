// Configs of every architecture and mixer kind: what each may say, and what contradicts itself.

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/config/config.h"
#include "model/config/tensors.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

Json Base(Json mixer) {
  Json json = Json::parse(R"({
    "format_version": 1, "architecture": "decoder_lm", "vocab_size": 256, "d_model": 48,
    "n_layers": 2, "d_ff": 96, "activation": "gelu", "norm": "layer_norm", "norm_eps": 1e-5,
    "tie_embeddings": false, "tokenizer": {"kind": "bytes"}})");
  json["mixer"] = std::move(mixer);
  return json;
}

Json Causal(Json mixer, int64_t max_seq_len = 0) {
  Json json = Base(std::move(mixer));
  if (max_seq_len != 0) json["max_seq_len"] = max_seq_len;
  return json;
}

Json Encoder(Json mixer) {
  mixer["causal"] = false;
  Json json = Base(std::move(mixer));
  json["architecture"] = "encoder";
  json.erase("tie_embeddings");
  return json;
}

Json Module(Json mixer) {
  Json json = {{"format_version", 1}, {"architecture", "mixer"}, {"d_model", 48}, {"n_layers", 1}};
  json["mixer"] = std::move(mixer);
  return json;
}

NetworkConfig Accepted(const Json& json) {
  const absl::StatusOr<NetworkConfig> config = ParseNetworkConfig(json.dump());
  EXPECT_TRUE(config.ok()) << config.status() << "\n" << json.dump();
  return config.ok() ? *config : NetworkConfig();
}

std::string Refusal(const Json& json) {
  const absl::Status status = ParseNetworkConfig(json.dump()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json.dump();
  return std::string(status.message());
}

// One of each kind, decoder and encoder, with every field of its own somewhere.
std::vector<Json> ValidConfigs() {
  const Json full = {{"kind", "aft_full"}, {"band_rows", 64}, {"bias", "full"}};
  const Json location = {{"kind", "location"}, {"band_rows", 64}};
  const Json conv = {{"kind", "aft_conv"}, {"window", 5}, {"heads", 6}};
  const Json block = {{"kind", "block_local"}, {"block_size", 4}, {"heads", 3}};
  std::vector<Json> configs = {
      Causal({{"kind", "aft_simple"}, {"hidden", 20}, {"prefix_block", 8}}),
      Causal({{"kind", "aft_local"},
              {"window", 4},
              {"band_rows", 64},
              {"bias", "factors"},
              {"bias_rank", 3},
              {"length_policy", "clamp"},
              {"ring", "bf16"}}),
      Causal(full, 64),
      Causal(conv),
      Causal({{"kind", "aft_conv"},
              {"window", 4},
              {"heads", 6},
              {"reparameterized", true},
              {"std_eps", 1e-6},
              {"unbiased_std", false}}),
      Causal(block),
      Causal({{"kind", "block_local"},
              {"block_size", 4},
              {"global_token", false},
              {"full_decode", true}},
             1 << 20),
      Causal({{"kind", "dot_product"}, {"heads", 4}}, 100),
      Causal({{"kind", "cosine"}, {"heads", 4}, {"hidden", 16}}, 100),
      Causal({{"kind", "additive"}, {"heads", 4}, {"score_width", 7}}, 100),
      Causal(location, 64),
      Encoder({{"kind", "aft_simple"}}),
      Encoder(conv),
      Encoder(block),
      Encoder({{"kind", "dot_product"}, {"heads", 4}}),
      Module({{"kind", "aft_local"}, {"window", 3}}),
      Module(
          {{"kind", "aft_conv"}, {"window", 3}, {"heads", 6}, {"causal", false}, {"grid", true}}),
  };
  Json many = Causal(conv, 512);
  many["activation"] = "relu";
  many["position"] = {{"kind", "learned"}, {"rows", 600}};
  many["embedding_scale"] = 6.9282;
  many["qkv_bias"] = false;
  many["head_bias"] = false;
  many["vocab_size"] = 70;
  many["tokenizer"]["kind"] = "chars";
  configs.push_back(many);
  Json sines = Encoder(conv);
  sines["position"] = {{"kind", "sinusoidal"}};
  sines["vocab_size"] = 50000;
  sines["tokenizer"]["kind"] = "bpe";
  configs.push_back(sines);
  return configs;
}

TEST(ConfigOfEveryKindTest, FormatParsesBackToTheSameConfig) {
  for (const Json& json : ValidConfigs()) {
    const NetworkConfig config = Accepted(json);
    const std::string text = FormatNetworkConfig(config);
    const absl::StatusOr<NetworkConfig> again = ParseNetworkConfig(text);
    ASSERT_TRUE(again.ok()) << again.status() << text;
    EXPECT_EQ(FormatNetworkConfig(*again), text);
    // Nothing is lost on the way, nothing is added.
    EXPECT_EQ(nlohmann::json::parse(text), nlohmann::json::parse(json.dump()));
    EXPECT_GT(CountParameters(config), 0);
  }
}

TEST(ConfigOfEveryKindTest, ReadsEveryNewField) {
  const NetworkConfig config = Accepted(ValidConfigs()[17]);
  EXPECT_EQ(config.activation, Activation::kRelu);
  EXPECT_EQ(config.position, PositionKind::kLearned);
  EXPECT_EQ(config.position_rows, 600);
  EXPECT_FLOAT_EQ(config.embedding_scale, 6.9282F);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_FALSE(config.head_bias);
  EXPECT_EQ(config.tokenizer, "chars");
  EXPECT_EQ(config.mixer.heads, 6);
  const MixerConfig local = Accepted(ValidConfigs()[1]).mixer;
  EXPECT_EQ(local.bias, BiasForm::kFactors);
  EXPECT_EQ(local.bias_rank, 3);
  EXPECT_EQ(local.length_policy, LengthPolicy::kClamp);
  EXPECT_EQ(local.ring, Number::kBf16);
  const MixerConfig conv = Accepted(ValidConfigs()[4]).mixer;
  EXPECT_TRUE(conv.reparameterized);
  EXPECT_FLOAT_EQ(conv.std_eps, 1e-6F);
  EXPECT_FALSE(conv.unbiased_std);
  const MixerConfig block = Accepted(ValidConfigs()[6]).mixer;
  EXPECT_EQ(block.block_size, 4);
  EXPECT_FALSE(block.global_token);
  EXPECT_TRUE(block.full_decode);
  EXPECT_EQ(Accepted(ValidConfigs()[9]).mixer.score_width, 7);
  EXPECT_EQ(MixerWidth(Accepted(ValidConfigs()[8])), 16);
  const NetworkConfig module = Accepted(ValidConfigs()[16]);
  EXPECT_EQ(module.architecture, Architecture::kMixer);
  EXPECT_EQ(module.tokenizer, "");
  EXPECT_TRUE(module.mixer.grid);
  EXPECT_FALSE(module.mixer.causal);
}

// A field that its kind does not use is named, whichever it is.
TEST(ConfigOfEveryKindTest, FieldsOfOtherKindsAreRefusedByName) {
  const std::vector<std::pair<const char*, Json>> others = {
      {"window", 4},     {"band_rows", 64},       {"prefix_block", 8},   {"heads", 2},
      {"bias", "full"},  {"bias_rank", 3},        {"ring", "bf16"},      {"length_policy", "zero"},
      {"std_eps", 0.5},  {"unbiased_std", false}, {"grid", true},        {"reparameterized", true},
      {"block_size", 4}, {"global_token", false}, {"full_decode", true}, {"score_width", 8}};
  for (const auto& [key, value] : others) {
    Json mixer = {{"kind", "aft_simple"}};
    if (std::string(key) == "prefix_block") {
      mixer = {{"kind", "location"}, {"band_rows", 64}};
    }
    mixer[key] = value;
    EXPECT_THAT(Refusal(Causal(mixer, 64)),
                HasSubstr("mixer." + std::string(key) + ": must be absent or "))
        << mixer;
  }
  // At its default it says nothing and does no harm.
  Accepted(Causal({{"kind", "aft_simple"}, {"window", 0}, {"heads", 1}, {"grid", false}}));
}

TEST(ConfigOfEveryKindTest, RequiredFieldsOfAKindAreNamedWhenMissing) {
  const std::vector<std::pair<const char*, const char*>> required = {
      {"aft_local", "window"},   {"aft_conv", "window"},        {"aft_full", "band_rows"},
      {"location", "band_rows"}, {"block_local", "block_size"}, {"additive", "score_width"}};
  for (const auto& [kind, key] : required) {
    EXPECT_EQ(Refusal(Causal({{"kind", kind}}, 64)), "mixer." + std::string(key) + ": missing");
  }
  EXPECT_EQ(Refusal(Causal({{"kind", "aft_full"}, {"band_rows", 64}}, 64)), "mixer.bias: missing");
}

TEST(ConfigOfEveryKindTest, WhatContradictsItselfIsRefused) {
  const auto refused = [](const Json& json, const std::string& message) {
    EXPECT_THAT(Refusal(json), HasSubstr(message)) << json;
  };
  const auto local = [](Json more) {
    Json mixer = {{"kind", "aft_local"}, {"window", 4}};
    mixer.update(more);
    return mixer;
  };
  // Heads and widths.
  refused(Causal({{"kind", "dot_product"}, {"heads", 5}}, 9),
          "mixer.heads: must divide the mixer's width (48), got 5");
  refused(Causal({{"kind", "cosine"}, {"heads", 4}, {"hidden", 18}}, 9),
          "mixer.heads: must divide the mixer's width (18), got 4");
  // Biases and their rows.
  refused(Causal({{"kind", "aft_full"}, {"band_rows", 9}, {"bias", "band"}}, 9),
          "mixer.bias: must be \"full\" or \"factors\" for aft_full");
  refused(Causal({{"kind", "aft_full"}, {"band_rows", 0}, {"bias", "full"}}, 9),
          "mixer.band_rows: must be >= 1 for aft_full, got 0");
  refused(Causal({{"kind", "aft_full"}, {"band_rows", 9}, {"bias", "full"}}, 10),
          "mixer.band_rows: must be equal to max_seq_len (10), got 9");
  refused(Causal({{"kind", "location"}, {"band_rows", 9}}, 10),
          "mixer.band_rows: must be equal to max_seq_len (10), got 9");
  refused(Causal(local({{"bias", "full"}})), "mixer.band_rows: must be >= 1 for this mixer.bias");
  refused(Causal(local({{"band_rows", 9}})),
          "mixer.band_rows: must be 0 or equal to max_seq_len (absent), got 9");
  refused(Causal({{"kind", "aft_local"}, {"window", 0}, {"bias", "full"}, {"band_rows", 9}}, 9),
          "mixer.bias: must be absent or \"band\" without a window");
  refused(Causal(local({{"length_policy", "zero"}})),
          "mixer.length_policy: must be absent or \"error\" without mixer.band_rows");
  refused(Causal(local({{"band_rows", 9}, {"bias", "factors"}}), 9),
          "mixer.bias_rank: must be >= 1 with mixer.bias \"factors\", got 0");
  refused(Causal(local({{"band_rows", 9}, {"bias_rank", 2}}), 9),
          "mixer.bias_rank: must be absent or 0 without mixer.bias \"factors\", got 2");
  Accepted(Causal(local({{"band_rows", 9}, {"length_policy", "zero"}})));
  Accepted(Causal(local({{"band_rows", 9}, {"length_policy", "clamp"}}), 5));
  // Convolutions.
  refused(Causal({{"kind", "aft_conv"}, {"window", 0}}), "mixer.window: must be >= 1 for aft_conv");
  refused(Encoder({{"kind", "aft_conv"}, {"window", 4}}),
          "mixer.window: must be odd for a bidirectional aft_conv, got 4");
  refused(Module({{"kind", "aft_conv"}, {"window", 3}, {"grid", true}}),
          "mixer.grid: must be false unless mixer.causal is false");
  refused(Encoder({{"kind", "aft_conv"}, {"window", 3}, {"grid", true}}),
          "mixer.grid: must be false unless the architecture is mixer");
  refused(Causal({{"kind", "aft_conv"}, {"window", 1}, {"reparameterized", true}}),
          "mixer.reparameterized: must be false with a mixer.window of 1");
  refused(Causal({{"kind", "aft_conv"}, {"window", 3}, {"std_eps", 1e-5}}),
          "mixer.std_eps: must be absent or 0 unless mixer.reparameterized");
  refused(Causal({{"kind", "aft_conv"}, {"window", 3}, {"unbiased_std", false}}),
          "mixer.unbiased_std: must be absent or true unless mixer.reparameterized");
  // Causal or not.
  refused(Encoder({{"kind", "aft_simple"}, {"prefix_block", 4}}),
          "mixer.prefix_block: must be absent or 0 when mixer.causal is false, got 4");
  refused(Encoder({{"kind", "block_local"}, {"block_size", 4}, {"full_decode", true}}),
          "mixer.full_decode: must be false when mixer.causal is false");
  refused(Causal({{"kind", "aft_simple"}, {"causal", false}}),
          "mixer.causal: must be true for the architecture decoder_lm, got false");
  // Lengths.
  for (const char* kind : {"dot_product", "cosine"}) {
    refused(Causal({{"kind", kind}}),
            "max_seq_len: must be >= 1 for " + std::string(kind) + ": a sequence's state grows");
  }
  refused(Causal({{"kind", "block_local"}, {"block_size", 4}, {"full_decode", true}}),
          "max_seq_len: must be >= 1 for block_local");
}

TEST(ConfigOfEveryKindTest, PositionsLimitTheLength) {
  Json json = Causal({{"kind", "aft_simple"}}, 100);
  json["position"] = {{"kind", "learned"}, {"rows", 99}};
  EXPECT_EQ(Refusal(json), "max_seq_len: must be >= 1 and <= position.rows (99), got 100");
  json.erase("max_seq_len");
  EXPECT_EQ(Refusal(json), "max_seq_len: must be >= 1 and <= position.rows (99), got absent");
  json["max_seq_len"] = 99;
  EXPECT_EQ(Accepted(json).position_rows, 99);
  json["position"].erase("rows");
  EXPECT_EQ(Refusal(json), "position.rows: missing");
  json["position"] = {{"kind", "sinusoidal"}, {"rows", 99}};
  EXPECT_EQ(Refusal(json), "position.rows: must be absent for sinusoidal");
  json["position"] = {{"kind", "rotary"}};
  EXPECT_THAT(Refusal(json), HasSubstr("position.kind: must be \"none\" or \"learned\" or "));
  json["position"] = 3;
  EXPECT_EQ(Refusal(json), "position: must be an object, got 3");
}

TEST(ConfigOfEveryKindTest, ArchitecturesRefuseWhatTheyDoNotHave) {
  const Json module = Module({{"kind", "aft_simple"}});
  for (const char* key : {"vocab_size", "d_ff", "activation", "norm", "norm_eps", "position",
                          "embedding_scale", "head_bias", "tie_embeddings", "tokenizer"}) {
    Json more = module;
    more[key] = 1;
    EXPECT_EQ(Refusal(more), std::string(key) + ": must be absent for the architecture mixer");
  }
  Json layers = module;
  layers["n_layers"] = 2;
  EXPECT_EQ(Refusal(layers), "n_layers: must be 1, got 2");
  for (const char* key : {"head_bias", "tie_embeddings"}) {
    Json more = Encoder({{"kind", "aft_simple"}});
    more[key] = true;
    EXPECT_EQ(Refusal(more), std::string(key) + ": must be absent for the architecture encoder");
  }
}

TEST(ConfigOfEveryKindTest, OnlyBytesFixTheVocabulary) {
  Json json = Causal({{"kind", "aft_simple"}});
  json["vocab_size"] = 65;
  EXPECT_THAT(Refusal(json), HasSubstr("vocab_size: must be 256 with the bytes tokenizer, got 65"));
  for (const char* tokenizer : {"chars", "bpe"}) {
    json["tokenizer"]["kind"] = tokenizer;
    EXPECT_EQ(Accepted(json).tokenizer, tokenizer);
  }
}

TEST(ConfigOfEveryKindTest, TensorsFollowTheArchitecture) {
  const auto names = [](const Json& json) {
    std::string joined;
    for (const TensorSpec& spec : ExpectedTensors(Accepted(json))) joined += spec.name + " ";
    return joined;
  };
  EXPECT_EQ(names(Module({{"kind", "aft_simple"}})),
            "layers.0.mixer.qkv.weight layers.0.mixer.qkv.bias layers.0.mixer.out.weight "
            "layers.0.mixer.out.bias ");
  EXPECT_THAT(names(Encoder({{"kind", "aft_simple"}})), Not(HasSubstr("head.")));
  EXPECT_THAT(names(Causal({{"kind", "aft_simple"}})),
              HasSubstr("norm.bias head.weight head.bias"));
  EXPECT_THAT(names(Causal({{"kind", "additive"}, {"score_width", 3}}, 9)),
              HasSubstr("layers.1.mixer.score.v "));
}

TEST(ConfigOfEveryKindTest, TheLargestConfigsDoNotOverflow) {
  for (Json json :
       {Causal({{"kind", "aft_full"}, {"band_rows", 1 << 20}, {"bias", "full"}}, 1 << 20),
        Causal({{"kind", "additive"}, {"heads", 65536}, {"score_width", 4096}}, 2147483647),
        Causal({{"kind", "aft_conv"}, {"window", 65536}, {"heads", 65536}})}) {
    json["d_model"] = 65536;
    json["n_layers"] = 1024;
    json["d_ff"] = 262144;
    EXPECT_GT(CountParameters(Accepted(json)), int64_t{1} << 45);
  }
  Json grid = Module({{"kind", "aft_conv"}, {"window", 1025}, {"causal", false}, {"grid", true}});
  EXPECT_EQ(Refusal(grid), "mixer.window: must be <= 1023 with mixer.grid, got 1025");
}

}  // namespace
}  // namespace aft
