// config.json of classifiers and of encoders of images.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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

Json ClassifierJson(const std::string& mixer = "aft_simple causal=false") {
  Json json = Json::parse(R"({
    "format_version": 1, "architecture": "encoder", "vocab_size": 256, "d_model": 48,
    "n_layers": 2, "d_ff": 96, "activation": "gelu_tanh", "norm": "layer_norm", "norm_eps": 1e-5,
    "tokenizer": {"kind": "bytes"}})");
  json["mixer"] = MixerJson(mixer);
  return json;
}

void ExpectClassifierRefused(const Json& json, const std::string& why) {
  EXPECT_THAT(ParseNetworkConfig(json.dump()),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(why)))
      << json;
}

TEST(ClassifierConfigTest, LabelsAreDifferentStrings) {
  const auto labelled = [](Json labels) {
    Json json = ClassifierJson();
    json["labels"] = std::move(labels);
    return json;
  };
  const auto config = ParseNetworkConfig(labelled({"cat", "dog", "\u00e9"}).dump());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->labels, (std::vector<std::string>{"cat", "dog", "\u00e9"}));
  for (const Json& wrong :
       {Json("cat"), Json(2), Json::object(), Json::array(), Json::array({"cat"})}) {
    ExpectClassifierRefused(labelled(wrong), "labels: must be a list of 2 to 65536 strings");
  }
  ExpectClassifierRefused(labelled({"cat", 2}), "labels[1]: must be a string of 1 to 256 bytes");
  ExpectClassifierRefused(labelled({"", "dog"}), "labels[0]: must be a string of 1 to 256 bytes");
  ExpectClassifierRefused(labelled({"a", std::string(257, 'x')}),
                          "labels[1]: must be a string of 1 to 256");
  ExpectClassifierRefused(labelled({"a", "b", "a"}), "labels[2]: is there twice: \"a\"");
}

TEST(ClassifierConfigTest, OnlyEncodersHaveLabels) {
  Json decoder = ClassifierJson("aft_simple");
  decoder["architecture"] = "decoder_lm";
  decoder["tie_embeddings"] = false;
  decoder["labels"] = {"a", "b"};
  ExpectClassifierRefused(decoder, "labels: must be absent for the architecture decoder_lm");
  Json mixer = {{"format_version", 1}, {"architecture", "mixer"}, {"d_model", 48}, {"n_layers", 1}};
  mixer["mixer"] = MixerJson("aft_simple");
  mixer["labels"] = {"a", "b"};
  ExpectClassifierRefused(mixer, "labels: must be absent for the architecture mixer");
}

TEST(ClassifierConfigTest, ClassifiersHaveAHead) {
  Json json = ClassifierJson("aft_conv window=3 grid=true causal=false");
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

}  // namespace
}  // namespace aft
