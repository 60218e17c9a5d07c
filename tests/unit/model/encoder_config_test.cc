// config.json of encoders: labels, heads, norms, and the ids around texts.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/config/config.h"
#include "model/config/tensors.h"
#include "nlohmann/json.hpp"
#include "tests/support/mixer_of.h"
#include "tests/support/status_matchers.h"

namespace aft {
namespace {

using Json = nlohmann::ordered_json;
using testing::StartsWith;

Json EncoderJson(const std::string& mixer = "aft_simple causal=false") {
  Json json = Json::parse(R"({
    "format_version": 1, "architecture": "encoder", "vocab_size": 256, "d_model": 48,
    "n_layers": 2, "d_ff": 96, "activation": "gelu_tanh", "norm": "layer_norm", "norm_eps": 1e-5,
    "tokenizer": {"kind": "bytes"}})");
  json["mixer"] = MixerJson(mixer);
  return json;
}

void ExpectEncoderRefused(const Json& json, const std::string& why) {
  EXPECT_THAT(ParseNetworkConfig(json.dump()),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(why)))
      << json;
}

TEST(EncoderConfigTest, LabelsAreDifferentStrings) {
  const auto labelled = [](Json labels) {
    Json json = EncoderJson();
    json["labels"] = std::move(labels);
    return json;
  };
  const auto config = ParseNetworkConfig(labelled({"cat", "dog", "\u00e9"}).dump());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->labels, (std::vector<std::string>{"cat", "dog", "\u00e9"}));
  for (const Json& wrong :
       {Json("cat"), Json(2), Json::object(), Json::array(), Json::array({"cat"})}) {
    ExpectEncoderRefused(labelled(wrong), "labels: must be a list of 2 to 65536 strings");
  }
  ExpectEncoderRefused(labelled({"cat", 2}), "labels[1]: must be a string of 1 to 256 bytes");
  ExpectEncoderRefused(labelled({"", "dog"}), "labels[0]: must be a string of 1 to 256 bytes");
  ExpectEncoderRefused(labelled({"a", std::string(257, 'x')}),
                       "labels[1]: must be a string of 1 to 256");
  ExpectEncoderRefused(labelled({"a", "b", "a"}), "labels[2]: occurs twice: \"a\"");
}

TEST(EncoderConfigTest, OnlyEncodersHaveLabels) {
  Json decoder = EncoderJson("aft_simple");
  decoder["architecture"] = "decoder_lm";
  decoder["tie_embeddings"] = false;
  decoder["labels"] = {"a", "b"};
  ExpectEncoderRefused(decoder, "labels: must be absent for the architecture decoder_lm");
  Json mixer = {{"format_version", 1}, {"architecture", "mixer"}, {"d_model", 48}, {"n_layers", 1}};
  mixer["mixer"] = MixerJson("aft_simple");
  mixer["labels"] = {"a", "b"};
  ExpectEncoderRefused(mixer, "labels: must be absent for the architecture mixer");
}

TEST(EncoderConfigTest, ClassifiersHaveAHead) {
  Json json = EncoderJson("aft_conv window=3 grid=true causal=false");
  json.erase("tokenizer");
  json["vocab_size"] = 17;
  const auto plain = ParseNetworkConfig(json.dump());
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->tokenizer, "");
  EXPECT_EQ(HeadRows(*plain), 0);
  json["labels"] = {"0", "1", "2"};
  const auto labelled = ParseNetworkConfig(json.dump());
  ASSERT_TRUE(labelled.ok()) << labelled.status();
  EXPECT_EQ(HeadRows(*labelled), 3);
  EXPECT_EQ(FormatNetworkConfig(*ParseNetworkConfig(FormatNetworkConfig(*labelled))),
            FormatNetworkConfig(*labelled));
  EXPECT_EQ(CountParameters(*labelled), CountParameters(*plain) + 3 * 48 + 3);
  const std::vector<TensorSpec> tensors = ExpectedTensors(*labelled);
  EXPECT_EQ(tensors[tensors.size() - 2].name, "head.weight");
  EXPECT_EQ(tensors[tensors.size() - 2].shape, (std::vector<int64_t>{3, 48}));
  EXPECT_EQ(tensors.back().shape, std::vector<int64_t>{3});
}

TEST(EncoderConfigTest, PoolingAndNormalizeChooseTheVectorOfAText) {
  Json json = EncoderJson();
  const auto plain = ParseNetworkConfig(json.dump());
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE(plain->pooling == Pooling::kMean && !plain->normalize);
  for (const auto& [name, pooling] :
       {std::pair("mean", Pooling::kMean), {"first", Pooling::kFirst}, {"last", Pooling::kLast}}) {
    json["pooling"] = name;
    json["normalize"] = true;
    const auto config = ParseNetworkConfig(json.dump());
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(config->pooling == pooling && config->normalize);
    const auto again = ParseNetworkConfig(FormatNetworkConfig(*config));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(again->pooling == pooling && again->normalize);
  }
  json["labels"] = {"a", "b"};
  ExpectEncoderRefused(json, "pooling: must be absent for a network with a head");
  json.erase("pooling");
  ExpectEncoderRefused(json, "normalize: must be absent for a network with a head");
  json.erase("labels");
  json["normalize"] = 1;
  ExpectEncoderRefused(json, "normalize: ");
  json["normalize"] = true;
  json["pooling"] = "none";
  ExpectEncoderRefused(json, "pooling: must be \"mean\" or \"first\" or \"last\"");
}

TEST(EncoderConfigTest, AHeadMayBeOverTheVocabulary) {
  Json json = EncoderJson();
  for (const char* key : {"head_bias", "tie_embeddings"}) {
    Json more = json;
    more[key] = true;
    ExpectEncoderRefused(
        more, std::string(key) + ": must be absent for an encoder without vocabulary_head");
  }
  json["vocabulary_head"] = true;
  ExpectEncoderRefused(json, "tie_embeddings: missing");
  json["tie_embeddings"] = true;
  json["head_bias"] = false;
  const auto config = ParseNetworkConfig(json.dump());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(HeadRows(*config), config->vocab_size);
  const auto again = ParseNetworkConfig(FormatNetworkConfig(*config));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->vocabulary_head && again->tie_embeddings && !again->head_bias);
  json["labels"] = {"a", "b"};
  ExpectEncoderRefused(json,
                       "vocabulary_head: must be absent or false with labels: there is one head");
  Json decoder = EncoderJson("aft_simple");
  decoder["architecture"] = "decoder_lm";
  decoder["vocabulary_head"] = true;
  ExpectEncoderRefused(decoder, "vocabulary_head: must be absent for the architecture decoder_lm");
}

TEST(EncoderConfigTest, NormsMayComeAfterTheSum) {
  Json json = EncoderJson();
  const auto names = [](const Json& of) {
    std::string joined;
    for (const TensorSpec& spec : ExpectedTensors(*ParseNetworkConfig(of.dump()))) {
      joined += spec.name + " ";
    }
    return joined;
  };
  EXPECT_THAT(names(json), testing::EndsWith(" norm.weight norm.bias "));
  json["norm_position"] = "post";
  json["embedding_norm"] = true;
  EXPECT_THAT(names(json), StartsWith("embed.weight embed_norm.weight embed_norm.bias layers.0."));
  EXPECT_THAT(names(json), testing::EndsWith("layers.1.ffn.down.bias "));
  const auto again = ParseNetworkConfig(FormatNetworkConfig(*ParseNetworkConfig(json.dump())));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->post_norm && again->embedding_norm);
  json["norm_position"] = "middle";
  ExpectEncoderRefused(json, "norm_position: must be \"pre\" or \"post\"");
}

TEST(EncoderConfigTest, LayersMayHaveNoFeedForwardAndNoLastNorm) {
  Json json = EncoderJson();
  json["n_layers"] = 4;
  json["feed_forward_every"] = 2;
  json["final_norm"] = false;
  for (const bool post : {false, true}) {
    json["norm_position"] = post ? "post" : "pre";
    const auto config = ParseNetworkConfig(json.dump());
    ASSERT_TRUE(config.ok()) << config.status();
    std::vector<std::string> norms;
    int64_t ups = 0;
    for (const TensorSpec& spec : ExpectedTensors(*config)) {
      if (absl::StrContains(spec.name, "norm") && absl::EndsWith(spec.name, ".weight")) {
        norms.push_back(spec.name.substr(0, spec.name.size() - 7));
      }
      ups += absl::EndsWith(spec.name, "ffn.up.weight");
    }
    std::vector<std::string> want = {"layers.0.norm1", "layers.1.norm1", "layers.1.norm2",
                                     "layers.2.norm1", "layers.3.norm1"};
    if (!post) want.emplace_back("layers.3.norm2");
    EXPECT_EQ(norms, want);
    EXPECT_EQ(ups, 2);
    EXPECT_EQ(FormatNetworkConfig(*ParseNetworkConfig(FormatNetworkConfig(*config))),
              FormatNetworkConfig(*config));
  }
  json["feed_forward_every"] = 3;
  ExpectEncoderRefused(json, "feed_forward_every: must divide n_layers (4), got 3");
  json["feed_forward_every"] = 8;
  ExpectEncoderRefused(json, "feed_forward_every: ");
}

TEST(EncoderConfigTest, TextsMayHaveIdsAroundThemOrNoTokenizer) {
  Json json = EncoderJson();
  json["tokenizer"] = {{"kind", "bytes"}, {"prefix", {1, 2}}, {"suffix", {255}}};
  const auto config = ParseNetworkConfig(json.dump());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->text_prefix, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(config->text_suffix, std::vector<int32_t>{255});
  EXPECT_EQ(FormatNetworkConfig(*ParseNetworkConfig(FormatNetworkConfig(*config))),
            FormatNetworkConfig(*config));
  for (const Json& wrong :
       {Json(1), Json({256}), Json({-1}), Json({"a"}), Json(std::vector<int>(65))}) {
    json["tokenizer"]["suffix"] = wrong;
    ExpectEncoderRefused(json, "tokenizer.suffix: must be a list of at most 64 ids below 256");
  }
  json["tokenizer"] = {{"kind", "none"}};
  const auto none = ParseNetworkConfig(json.dump());
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->tokenizer, "");
  EXPECT_TRUE(ParseNetworkConfig(FormatNetworkConfig(*none)).ok());
  json["tokenizer"]["prefix"] = {1};
  ExpectEncoderRefused(json,
                       "tokenizer.prefix: must be absent except for an encoder with a tokenizer");
  Json decoder = EncoderJson("aft_simple");
  decoder["architecture"] = "decoder_lm";
  decoder["tie_embeddings"] = false;
  decoder["tokenizer"]["prefix"] = {1};
  ExpectEncoderRefused(decoder, "tokenizer.prefix: must be absent except for an encoder");
  decoder["tokenizer"] = {{"kind", "none"}};
  ExpectEncoderRefused(decoder, "tokenizer.kind: \"none\" is for the architecture encoder");
}

}  // namespace
}  // namespace aft
