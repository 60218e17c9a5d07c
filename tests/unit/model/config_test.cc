#include "model/config/config.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::StartsWith;

Json ValidJson() {
  return Json::parse(R"({
    "format_version": 1, "architecture": "decoder_lm", "vocab_size": 256, "d_model": 128,
    "n_layers": 4, "d_ff": 512, "activation": "gelu_tanh", "norm": "layer_norm", "norm_eps": 1e-5,
    "tie_embeddings": false, "max_seq_len": 1024,
    "mixer": {"kind": "aft_local", "window": 32, "band_rows": 1024, "prefix_block": 128},
    "tokenizer": {"kind": "bytes"}})");
}

absl::Status ParseError(const Json& json) { return ParseNetworkConfig(json.dump()).status(); }

// The member at `pointer` ("/mixer/window") replaced by `value`.
Json With(const char* pointer, Json value) {
  Json json = ValidJson();
  json[Json::json_pointer(pointer)] = std::move(value);
  return json;
}

Json Without(std::string parent, const char* key) {
  Json json = ValidJson();
  json[Json::json_pointer(parent)].erase(key);
  return json;
}

void ExpectRefused(const Json& json, const std::string& message_start) {
  const absl::Status status = ParseError(json);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json.dump();
  EXPECT_THAT(std::string(status.message()), StartsWith(message_start)) << json.dump();
}

TEST(NetworkConfigTest, ReadsEveryField) {
  const absl::StatusOr<NetworkConfig> config = ParseNetworkConfig(ValidJson().dump());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 256);
  EXPECT_EQ(config->d_model, 128);
  EXPECT_EQ(config->n_layers, 4);
  EXPECT_EQ(config->d_ff, 512);
  EXPECT_EQ(config->norm_eps, 1e-5F);
  EXPECT_FALSE(config->tie_embeddings);
  EXPECT_EQ(config->max_seq_len, 1024);
  EXPECT_EQ(config->mixer.kind, MixerKind::kAftLocal);
  EXPECT_EQ(config->mixer.window, 32);
  EXPECT_EQ(config->mixer.band_rows, 1024);
  EXPECT_EQ(config->mixer.prefix_block, 128);
  EXPECT_EQ(config->tokenizer, "bytes");
}

TEST(NetworkConfigTest, OptionalKeysMayBeAbsent) {
  Json json = ValidJson();
  json.erase("max_seq_len");
  json["mixer"] = {{"kind", "aft_simple"}};
  const absl::StatusOr<NetworkConfig> config = ParseNetworkConfig(json.dump());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->max_seq_len, 0);
  EXPECT_EQ(config->mixer.kind, MixerKind::kAftSimple);
  EXPECT_EQ(config->mixer.window, 0);
  EXPECT_EQ(config->mixer.band_rows, 0);
  EXPECT_EQ(config->mixer.prefix_block, 0);
}

TEST(NetworkConfigTest, FormatParsesBackToTheSameText) {
  std::vector<Json> valid = {ValidJson(), With("/tie_embeddings", true),
                             With("/mixer", {{"kind", "aft_simple"}, {"prefix_block", 1}}),
                             With("/mixer", {{"kind", "aft_local"}, {"window", 0}})};
  for (const float eps : {1e-12F, 1e-6F, 3.3e-4F, 0.1F}) valid.push_back(With("/norm_eps", eps));
  for (const Json& json : valid) {
    // The smallest and largest values are those of float, which lie a little off the decimal
    // bounds.
    if (json["norm_eps"].get<double>() < 1e-12 || json["norm_eps"].get<double>() > 0.1) continue;
    const absl::StatusOr<NetworkConfig> config = ParseNetworkConfig(json.dump());
    ASSERT_TRUE(config.ok()) << config.status();
    const std::string text = FormatNetworkConfig(*config);
    EXPECT_EQ(text.back(), '\n');
    const absl::StatusOr<NetworkConfig> again = ParseNetworkConfig(text);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(FormatNetworkConfig(*again), text);
    EXPECT_EQ(again->norm_eps, config->norm_eps);
  }
}

TEST(NetworkConfigTest, FormatWritesTheShortestEpsilon) {
  const absl::StatusOr<NetworkConfig> config = ParseNetworkConfig(ValidJson().dump());
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(FormatNetworkConfig(*config), HasSubstr("\"norm_eps\": 1e-05,"));
}

TEST(NetworkConfigTest, EveryRequiredKeyIsNamedWhenMissing) {
  for (const char* key :
       {"format_version", "architecture", "vocab_size", "d_model", "n_layers", "d_ff", "activation",
        "norm", "norm_eps", "tie_embeddings", "mixer", "tokenizer"}) {
    ExpectRefused(Without("", key), std::string(key) + ": missing");
  }
  ExpectRefused(Without("/mixer", "kind"), "mixer.kind: missing");
  ExpectRefused(Without("/mixer", "window"), "mixer.window: missing");
  ExpectRefused(Without("/tokenizer", "kind"), "tokenizer.kind: missing");
}

TEST(NetworkConfigTest, UnknownKeysAreNamedWithTheirPath) {
  ExpectRefused(With("/dropout", 0.1), "dropout: unknown key; known: format_version, ");
  ExpectRefused(With("/mixer/windwo", 32), "mixer.windwo: unknown key; known: kind, window, ");
  ExpectRefused(With("/tokenizer/path", "x"), "tokenizer.path: unknown key; known: kind");
}

struct IntegerKey {
  const char* pointer;
  const char* path;
  int64_t min;
  int64_t max;
};

class IntegerKeyTest : public testing::TestWithParam<IntegerKey> {};

TEST_P(IntegerKeyTest, RefusesOtherTypesAndValuesOutOfRange) {
  const IntegerKey& key = GetParam();
  const std::string path = key.path;
  for (const Json& wrong : {Json("7"), Json(true), Json(nullptr), Json(7.0), Json(1e300),
                            Json::array({7}), Json::object()}) {
    ExpectRefused(With(key.pointer, wrong), path + ": must be an integer, got ");
  }
  const auto lowest = std::numeric_limits<int64_t>::min();
  for (const Json& outside :
       {Json(key.min - 1), Json(key.max + 1), Json(lowest),
        Json(std::numeric_limits<int64_t>::max()), Json(std::numeric_limits<uint64_t>::max())}) {
    ExpectRefused(With(key.pointer, outside), path + ": must be ");
    EXPECT_THAT(std::string(ParseError(With(key.pointer, outside)).message()),
                HasSubstr("got " + outside.dump()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    EveryKey, IntegerKeyTest,
    testing::Values(IntegerKey{"/format_version", "format_version", 1, 1},
                    IntegerKey{"/vocab_size", "vocab_size", 1, 1 << 24},
                    IntegerKey{"/d_model", "d_model", 1, 65536},
                    IntegerKey{"/n_layers", "n_layers", 1, 1024},
                    IntegerKey{"/d_ff", "d_ff", 1, 262144},
                    IntegerKey{"/max_seq_len", "max_seq_len", 1, 2147483647},
                    IntegerKey{"/mixer/window", "mixer.window", 0, 65536},
                    IntegerKey{"/mixer/band_rows", "mixer.band_rows", 0, 1 << 20},
                    IntegerKey{"/mixer/prefix_block", "mixer.prefix_block", 0, 2147483647}));

TEST(NetworkConfigTest, NamesOutsideTheirSetAreRefused) {
  for (const char* pointer :
       {"/architecture", "/activation", "/norm", "/mixer/kind", "/tokenizer/kind"}) {
    std::string path = std::string(pointer).substr(1);
    if (const size_t slash = path.find('/'); slash != std::string::npos) path[slash] = '.';
    for (const Json& wrong : {Json("other"), Json(""), Json(1), Json(nullptr), Json::object()}) {
      ExpectRefused(With(pointer, wrong), path + ": must be \"");
    }
  }
  EXPECT_EQ(std::string(ParseError(With("/architecture", "rnn")).message()),
            "architecture: must be \"decoder_lm\" or \"encoder\" or \"mixer\", got \"rnn\"");
}

TEST(NetworkConfigTest, BooleansAndNumbersOfOtherTypesAreRefused) {
  for (const Json& wrong : {Json(0), Json("false"), Json(nullptr)}) {
    ExpectRefused(With("/tie_embeddings", wrong), "tie_embeddings: must be true or false, got ");
  }
  for (const Json& wrong : {Json("1e-5"), Json(false), Json(nullptr), Json::array()}) {
    ExpectRefused(With("/norm_eps", wrong), "norm_eps: must be a number, got ");
  }
  for (const Json& outside : {Json(0), Json(-1e-5), Json(1e-13), Json(0.11), Json(1e300)}) {
    ExpectRefused(With("/norm_eps", outside), "norm_eps: must be >= 1e-12 and <= 0.1, got ");
  }
}

TEST(NetworkConfigTest, ObjectsOfOtherTypesAreRefused) {
  for (const Json& wrong : {Json(1), Json("aft_local"), Json(nullptr), Json::array()}) {
    ExpectRefused(With("/mixer", wrong), "mixer: must be an object, got ");
    ExpectRefused(With("/tokenizer", wrong), "tokenizer: must be an object, got ");
    ExpectRefused(wrong, "config: must be an object, got ");
  }
}

TEST(NetworkConfigTest, KeysThatContradictEachOtherAreRefused) {
  ExpectRefused(With("/max_seq_len", 1000),
                "mixer.band_rows: must be 0 or equal to max_seq_len (1000), got 1024");
  ExpectRefused(Without("", "max_seq_len"),
                "mixer.band_rows: must be 0 or equal to max_seq_len (absent), got 1024");
  ExpectRefused(With("/mixer/prefix_block", 31), "mixer.prefix_block: must be 0 or >= 32, got 31");
  ExpectRefused(With("/mixer/window", 0), "mixer.band_rows: must be absent or 0 without a window");
  ExpectRefused(With("/mixer/kind", "aft_simple"),
                "mixer.window: must be absent or 0 for aft_simple, got 32");
  ExpectRefused(With("/vocab_size", 300), "vocab_size: must be 256 with the bytes tokenizer");
  EXPECT_TRUE(ParseError(With("/mixer/prefix_block", 32)).ok());
}

TEST(NetworkConfigTest, DuplicateKeysAreNamedWithTheirPath) {
  std::string text = ValidJson().dump();
  const auto insert_before = [&](const std::string& place, const std::string& addition) {
    std::string changed = text;
    changed.insert(changed.find(place), addition);
    return std::string(ParseNetworkConfig(changed).status().message());
  };
  EXPECT_EQ(insert_before("\"d_model\"", "\"d_model\": 1, "), "d_model: given more than once");
  EXPECT_EQ(insert_before("\"window\"", "\"window\": 32, "), "mixer.window: given more than once");
}

TEST(NetworkConfigTest, TextThatIsNotJsonIsRefused) {
  const std::string valid = ValidJson().dump();
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("nul"), valid + "x", valid + valid,
        std::string("{\"a\xFF\": 1}"), "// note\n" + valid, std::string("{\"norm_eps\": 1e999}")}) {
    const absl::Status status = ParseNetworkConfig(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), StartsWith("config is not valid JSON")) << text;
  }
  const std::string with_nul = valid + std::string("\0{", 2);
  EXPECT_EQ(ParseNetworkConfig(with_nul).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ParseNetworkConfig(std::string(2 << 20, ' ')).status().message()),
              HasSubstr("at most 1048576"));
  // Deep nesting must not exhaust the stack.
  EXPECT_FALSE(ParseNetworkConfig(std::string(500'000, '[')).ok());
  EXPECT_FALSE(ParseNetworkConfig("{\"mixer\": " + std::string(200'000, '[') +
                                  std::string(200'000, ']') + "}")
                   .ok());
}

TEST(NetworkConfigTest, RandomByteChangesNeverCrash) {
  const std::string valid = ValidJson().dump();
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string text = valid;
    for (uint32_t n = random() % 4; n < 4; ++n) {
      text[random() % text.size()] = static_cast<char>(random() & 0xFF);
    }
    const absl::StatusOr<NetworkConfig> config = ParseNetworkConfig(text);
    if (config.ok()) {
      EXPECT_GT(CountParameters(*config), 0);
    } else {
      EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(NetworkConfigTest, CountsTheWeightsOfASmallNetwork) {
  NetworkConfig config;
  config.vocab_size = 5;
  config.d_model = 2;
  config.n_layers = 3;
  config.d_ff = 7;
  config.mixer.window = 4;
  // Per layer: norms 2 * (2 + 2), qkv 6 * 2 + 6, out 2 * 2 + 2, band 4, up 7 * 2 + 7, down 2 * 7
  // + 2.
  const int64_t layer = 8 + 18 + 6 + 4 + 21 + 16;
  EXPECT_EQ(CountParameters(config), 5 * 2 + 3 * layer + 4 + (5 * 2 + 5));
  config.tie_embeddings = true;
  EXPECT_EQ(CountParameters(config), 5 * 2 + 3 * layer + 4 + 5);
  config.head_bias = false;
  EXPECT_EQ(CountParameters(config), 5 * 2 + 3 * layer + 4);
  config.mixer.band_rows = 10;
  EXPECT_EQ(CountParameters(config), 5 * 2 + 3 * (layer + 36) + 4);
  config.mixer.kind = MixerKind::kAftSimple;
  config.mixer.window = 0;
  EXPECT_EQ(CountParameters(config), 5 * 2 + 3 * (layer - 4) + 4);
  config.qkv_bias = false;
  EXPECT_EQ(CountParameters(config), 5 * 2 + 3 * (layer - 4 - 6) + 4);
  config.position = PositionKind::kLearned;
  config.position_rows = 11;
  EXPECT_EQ(CountParameters(config), (5 + 11) * 2 + 3 * (layer - 4 - 6) + 4);
}

TEST(NetworkConfigTest, TheLargestConfigDoesNotOverflow) {
  Json json = ValidJson();
  json["d_model"] = 65536;
  json["n_layers"] = 1024;
  json["d_ff"] = 262144;
  json["max_seq_len"] = 1 << 20;
  json["mixer"] = {{"kind", "aft_local"}, {"window", 65536}, {"band_rows", 1 << 20}};
  const absl::StatusOr<NetworkConfig> config = ParseNetworkConfig(json.dump());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_GT(CountParameters(*config), int64_t{1} << 45);
}

}  // namespace
}  // namespace aft
