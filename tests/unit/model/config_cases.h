#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/config/config.h"
#include "nlohmann/json.hpp"
#include "tests/support/mixer_of.h"

namespace aft {

using Json = nlohmann::ordered_json;

// Small configs with the mixer that MixerOf (tests/support/mixer_of.h) describes, and what
// ParseNetworkConfig says about them.

inline Json Causal(const std::string& mixer, int64_t max_seq_len = 0) {
  Json json = Json::parse(R"({
    "format_version": 1, "architecture": "decoder_lm", "vocab_size": 256, "d_model": 48,
    "n_layers": 2, "d_ff": 96, "activation": "gelu_tanh", "norm": "layer_norm", "norm_eps": 1e-5,
    "tie_embeddings": false, "tokenizer": {"kind": "bytes"}})");
  json["mixer"] = MixerJson(mixer);
  if (max_seq_len != 0) json["max_seq_len"] = max_seq_len;
  return json;
}

inline Json Encoder(const std::string& mixer) {
  Json json = Causal(mixer + " causal=false");
  json["architecture"] = "encoder";
  json.erase("tie_embeddings");
  return json;
}

inline Json Module(const std::string& mixer) {
  Json json = {{"format_version", 1}, {"architecture", "mixer"}, {"d_model", 48}, {"n_layers", 1}};
  json["mixer"] = MixerJson(mixer);
  return json;
}

inline constexpr char kWkv7[] = "wkv7 heads=3 decay_rank=4 rate_rank=5 value_rank=6 gate_rank=7";
inline Json Rwkv(const std::string& mixer, const char* feed_forward) {
  Json json = Causal(mixer);
  json.update({{"feed_forward", feed_forward},
               {"activation", "squared_relu"},
               {"embedding_norm", true},
               {"head_bias", false},
               {"qkv_bias", false}});
  return json;
}

// A decoder with most keys. With replaces the member at `pointer`, such as "/mixer/window".
inline Json Valid() { return Causal("aft_local window=32 band_rows=1024 prefix_block=128", 1024); }
inline Json With(const char* pointer, Json value, Json json = Valid()) {
  json[Json::json_pointer(pointer)] = std::move(value);
  return json;
}
inline Json Without(const std::string& parent, const char* key) {
  Json json = Valid();
  json[Json::json_pointer(parent)].erase(key);
  return json;
}

inline NetworkConfig Accepted(const Json& json) {
  const absl::StatusOr<NetworkConfig> config = ParseNetworkConfig(json.dump());
  EXPECT_TRUE(config.ok()) << config.status() << "\n" << json.dump();
  return config.ok() ? *config : NetworkConfig();
}

inline std::string Refusal(const std::string& text) {
  const absl::Status status = ParseNetworkConfig(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}
inline std::string Refusal(const Json& json) { return Refusal(json.dump()); }

inline void ExpectRefused(const Json& json, const std::string& message_start) {
  EXPECT_THAT(Refusal(json), testing::StartsWith(message_start)) << json.dump();
}

}  // namespace aft
