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
#include "tests/unit/model/config_cases.h"

namespace aft {
namespace {

using testing::StartsWith;

// Writes a config to its file's text, and reads it again.
NetworkConfig Again(const NetworkConfig& config) {
  return Accepted(Json::parse(FormatNetworkConfig(config)));
}

TEST(EncoderConfigTest, LabelsAreDifferentStrings) {
  const auto labelled = [](const Json& labels) {
    return With("/labels", labels, Encoder("aft_simple"));
  };
  EXPECT_EQ(Accepted(labelled({"cat", "dog", "\u00e9"})).labels,
            (std::vector<std::string>{"cat", "dog", "\u00e9"}));
  for (const Json& wrong :
       {Json("cat"), Json(2), Json::object(), Json::array(), Json::array({"cat"})}) {
    ExpectRefused(labelled(wrong), "labels: must be a list of 2 to 65536 strings");
  }
  ExpectRefused(labelled({"cat", 2}), "labels[1]: must be a string of 1 to 256 bytes");
  ExpectRefused(labelled({"", "dog"}), "labels[0]: must be a string of 1 to 256 bytes");
  ExpectRefused(labelled({"a", std::string(257, 'x')}), "labels[1]: must be a string of 1 to 256");
  ExpectRefused(labelled({"a", "b", "a"}), "labels[2]: occurs twice: \"a\"");
}

TEST(EncoderConfigTest, OnlyEncodersHaveLabels) {
  ExpectRefused(With("/labels", {"a", "b"}, Causal("aft_simple")),
                "labels: must be absent for the architecture decoder_lm");
  ExpectRefused(With("/labels", {"a", "b"}, Module("aft_simple")),
                "labels: must be absent for the architecture mixer");
}

TEST(EncoderConfigTest, ClassifiersHaveAHead) {
  Json json = Encoder("aft_conv window=3 grid=true");
  json.erase("tokenizer");
  json["vocab_size"] = 17;
  const NetworkConfig plain = Accepted(json);
  EXPECT_EQ(plain.tokenizer, "");
  EXPECT_EQ(HeadRows(plain), 0);
  json["labels"] = {"0", "1", "2"};
  const NetworkConfig labelled = Accepted(json);
  EXPECT_EQ(HeadRows(labelled), 3);
  EXPECT_EQ(FormatNetworkConfig(Again(labelled)), FormatNetworkConfig(labelled));
  EXPECT_EQ(CountParameters(labelled), CountParameters(plain) + 3 * 48 + 3);
  const std::vector<TensorSpec> tensors = ExpectedTensors(labelled);
  EXPECT_EQ(tensors[tensors.size() - 2].name, "head.weight");
  EXPECT_EQ(tensors[tensors.size() - 2].shape, (std::vector<int64_t>{3, 48}));
  EXPECT_EQ(tensors.back().shape, std::vector<int64_t>{3});
}

TEST(EncoderConfigTest, PoolingAndNormalizeChooseTheVectorOfAText) {
  Json json = Encoder("aft_simple");
  const NetworkConfig plain = Accepted(json);
  EXPECT_TRUE(plain.pooling == Pooling::kMean && !plain.normalize);
  for (const auto& [name, pooling] :
       {std::pair("mean", Pooling::kMean), {"first", Pooling::kFirst}, {"last", Pooling::kLast}}) {
    json["pooling"] = name;
    json["normalize"] = true;
    const NetworkConfig config = Accepted(json);
    EXPECT_TRUE(config.pooling == pooling && config.normalize);
    const NetworkConfig again = Again(config);
    EXPECT_TRUE(again.pooling == pooling && again.normalize);
  }
  json["labels"] = {"a", "b"};
  ExpectRefused(json, "pooling: must be absent for a network with a head");
  json.erase("pooling");
  ExpectRefused(json, "normalize: must be absent for a network with a head");
  json.erase("labels");
  json["normalize"] = 1;
  ExpectRefused(json, "normalize: ");
  json["normalize"] = true;
  json["pooling"] = "none";
  ExpectRefused(json, "pooling: must be \"mean\" or \"first\" or \"last\"");
}

TEST(EncoderConfigTest, AHeadMayBeOverTheVocabulary) {
  Json json = Encoder("aft_simple");
  for (const char* key : {"head_bias", "tie_embeddings"}) {
    Json more = json;
    more[key] = true;
    ExpectRefused(more,
                  std::string(key) + ": must be absent for an encoder without vocabulary_head");
  }
  json["vocabulary_head"] = true;
  ExpectRefused(json, "tie_embeddings: missing");
  json["tie_embeddings"] = true;
  json["head_bias"] = false;
  const NetworkConfig config = Accepted(json);
  EXPECT_EQ(HeadRows(config), config.vocab_size);
  const NetworkConfig again = Again(config);
  EXPECT_TRUE(again.vocabulary_head && again.tie_embeddings && !again.head_bias);
  json["labels"] = {"a", "b"};
  ExpectRefused(json, "vocabulary_head: must be absent or false with labels: there is one head");
  ExpectRefused(With("/vocabulary_head", true, Causal("aft_simple")),
                "vocabulary_head: must be absent for the architecture decoder_lm");
}

TEST(EncoderConfigTest, NormsMayComeAfterTheSum) {
  Json json = Encoder("aft_simple");
  const auto names = [](const Json& of) {
    std::string joined;
    for (const TensorSpec& spec : ExpectedTensors(Accepted(of))) {
      joined += spec.name + " ";
    }
    return joined;
  };
  EXPECT_THAT(names(json), testing::EndsWith(" norm.weight norm.bias "));
  json["norm_position"] = "post";
  json["embedding_norm"] = true;
  EXPECT_THAT(names(json), StartsWith("embed.weight embed_norm.weight embed_norm.bias layers.0."));
  EXPECT_THAT(names(json), testing::EndsWith("layers.1.ffn.down.bias "));
  const NetworkConfig again = Again(Accepted(json));
  EXPECT_TRUE(again.post_norm && again.embedding_norm);
  json["norm_position"] = "middle";
  ExpectRefused(json, "norm_position: must be \"pre\" or \"post\"");
}

TEST(EncoderConfigTest, LayersMayHaveNoFeedForwardAndNoLastNorm) {
  Json json = Encoder("aft_simple");
  json["n_layers"] = 4;
  json["feed_forward_every"] = 2;
  json["final_norm"] = false;
  for (const bool post : {false, true}) {
    json["norm_position"] = post ? "post" : "pre";
    const NetworkConfig config = Accepted(json);
    std::vector<std::string> norms;
    int64_t ups = 0;
    for (const TensorSpec& spec : ExpectedTensors(config)) {
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
    EXPECT_EQ(FormatNetworkConfig(Again(config)), FormatNetworkConfig(config));
  }
  json["feed_forward_every"] = 3;
  ExpectRefused(json, "feed_forward_every: must divide n_layers (4), got 3");
  json["feed_forward_every"] = 8;
  ExpectRefused(json, "feed_forward_every: ");
}

TEST(EncoderConfigTest, TextsMayHaveIdsAroundThemOrNoTokenizer) {
  Json json = Encoder("aft_simple");
  json["tokenizer"] = {{"kind", "bytes"}, {"prefix", {1, 2}}, {"suffix", {255}}};
  const NetworkConfig config = Accepted(json);
  EXPECT_EQ(config.text_prefix, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(config.text_suffix, std::vector<int32_t>{255});
  EXPECT_EQ(FormatNetworkConfig(Again(config)), FormatNetworkConfig(config));
  for (const Json& wrong :
       {Json(1), Json({256}), Json({-1}), Json({"a"}), Json(std::vector<int>(65))}) {
    json["tokenizer"]["suffix"] = wrong;
    ExpectRefused(json, "tokenizer.suffix: must be a list of at most 64 ids below 256");
  }
  json["tokenizer"] = {{"kind", "none"}};
  const NetworkConfig none = Accepted(json);
  EXPECT_EQ(none.tokenizer, "");
  EXPECT_EQ(Again(none).tokenizer, "");
  json["tokenizer"]["prefix"] = {1};
  ExpectRefused(json, "tokenizer.prefix: must be absent except for an encoder with a tokenizer");
  ExpectRefused(With("/tokenizer/prefix", {1}, Causal("aft_simple")),
                "tokenizer.prefix: must be absent except for an encoder");
  ExpectRefused(With("/tokenizer/kind", "none", Causal("aft_simple")),
                "tokenizer.kind: \"none\" is for the architecture encoder");
}

}  // namespace
}  // namespace aft
