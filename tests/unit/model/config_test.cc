// config.json: the keys that each architecture and mixer accepts, and errors that name the key.

#include "model/config/config.h"

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/config/tensors.h"
#include "nlohmann/json.hpp"
#include "tests/unit/model/config_cases.h"

namespace aft {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// Configs of each kind, as decoder and as encoder. Every field occurs in at least one of them.
std::vector<Json> ValidConfigs() {
  const std::string conv = "aft_conv window=5 heads=6";
  const std::string block = "block_local block_size=4 heads=3";
  std::vector<Json> configs = {
      Valid(),
      Causal("aft_simple hidden=20 prefix_block=8"),
      Causal("aft_local window=0"),
      Causal("aft_local window=4 band_rows=64 bias=factors bias_rank=3 length_policy=clamp "
             "ring=bf16"),
      Causal("aft_full band_rows=64 bias=full", 64),
      Causal("aft_conv window=4 heads=6 reparameterized=true std_eps=1e-6 unbiased_std=false"),
      Causal(block),
      Causal("block_local block_size=4 global_token=false full_decode=true", 1 << 20),
      Causal("dot_product heads=4", 100),
      Causal("cosine heads=4 hidden=16", 100),
      Causal("additive heads=4 score_width=7", 100),
      Causal("location band_rows=64", 64),
      Encoder("aft_simple"),
      Encoder(conv),
      Encoder(block),
      Encoder("dot_product heads=4"),
      Module("aft_local window=3"),
      Module("aft_conv window=3 heads=6 causal=false grid=true"),
      Rwkv("wkv4", "gated_channel_mix"),
      Rwkv(kWkv7, "channel_mix"),
      With("/tie_embeddings", true),
      With("/position", {{"kind", "sinusoidal"}}, Encoder(conv)),
  };
  for (const double eps : {1e-12, 1e-6, 3.3e-4, 0.1}) configs.push_back(With("/norm_eps", eps));
  Json many = Causal(conv, 512);
  many.update({{"activation", "relu"},
               {"position", {{"kind", "learned"}, {"rows", 600}}},
               {"embedding_scale", 6.9282},
               {"qkv_bias", false},
               {"head_bias", false},
               {"vocab_size", 70},
               {"tokenizer", {{"kind", "chars"}}}});
  configs.push_back(many);
  return configs;
}

TEST(ConfigTest, FormatParsesBackToTheSameConfig) {
  for (const Json& json : ValidConfigs()) {
    const NetworkConfig config = Accepted(json);
    const std::string text = FormatNetworkConfig(config);
    EXPECT_EQ(text.back(), '\n');
    EXPECT_EQ(FormatNetworkConfig(Accepted(Json::parse(text))), text);
    // Nothing is lost or added on the way.
    EXPECT_EQ(nlohmann::json::parse(text), nlohmann::json::parse(json.dump()));
    EXPECT_GT(CountParameters(config), 0);
  }
}

TEST(ConfigTest, ReadsEveryField) {
  const NetworkConfig config = Accepted(Valid());
  EXPECT_EQ(config.vocab_size, 256);
  EXPECT_EQ(config.d_model, 48);
  EXPECT_EQ(config.n_layers, 2);
  EXPECT_EQ(config.d_ff, 96);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_EQ(config.norm_eps, 1e-5F);
  EXPECT_FALSE(config.tie_embeddings);
  EXPECT_EQ(config.max_seq_len, 1024);
  EXPECT_EQ(config.mixer.kind, MixerKind::kAftLocal);
  EXPECT_EQ(config.mixer.window, 32);
  EXPECT_EQ(config.mixer.band_rows, 1024);
  EXPECT_EQ(config.mixer.prefix_block, 128);
  EXPECT_EQ(config.tokenizer, "bytes");

  const NetworkConfig many = Accepted(ValidConfigs().back());
  EXPECT_EQ(many.activation, Activation::kRelu);
  EXPECT_EQ(many.position, PositionKind::kLearned);
  EXPECT_EQ(many.position_rows, 600);
  EXPECT_FLOAT_EQ(many.embedding_scale, 6.9282F);
  EXPECT_FALSE(many.qkv_bias);
  EXPECT_FALSE(many.head_bias);
  EXPECT_EQ(many.tokenizer, "chars");
  EXPECT_EQ(many.mixer.heads, 6);

  const MixerConfig local = Accepted(ValidConfigs()[3]).mixer;
  EXPECT_EQ(local.bias, BiasForm::kFactors);
  EXPECT_EQ(local.bias_rank, 3);
  EXPECT_EQ(local.length_policy, LengthPolicy::kClamp);
  EXPECT_EQ(local.ring, Number::kBf16);
  const MixerConfig conv = Accepted(ValidConfigs()[5]).mixer;
  EXPECT_TRUE(conv.reparameterized);
  EXPECT_FLOAT_EQ(conv.std_eps, 1e-6F);
  EXPECT_FALSE(conv.unbiased_std);
  const MixerConfig block = Accepted(ValidConfigs()[7]).mixer;
  EXPECT_EQ(block.block_size, 4);
  EXPECT_FALSE(block.global_token);
  EXPECT_TRUE(block.full_decode);
  EXPECT_EQ(MixerWidth(Accepted(ValidConfigs()[9])), 16);
  EXPECT_EQ(Accepted(ValidConfigs()[10]).mixer.score_width, 7);
  const NetworkConfig module = Accepted(ValidConfigs()[17]);
  EXPECT_EQ(module.architecture, Architecture::kMixer);
  EXPECT_EQ(module.tokenizer, "");
  EXPECT_TRUE(module.mixer.grid);
  EXPECT_FALSE(module.mixer.causal);
}

// ---- One key

TEST(ConfigTest, EveryRequiredKeyIsNamedWhenMissing) {
  for (const char* key :
       {"format_version", "architecture", "vocab_size", "d_model", "n_layers", "d_ff", "activation",
        "norm", "norm_eps", "tie_embeddings", "mixer", "tokenizer"}) {
    ExpectRefused(Without("", key), absl::StrCat(key, ": missing"));
  }
  ExpectRefused(Without("/mixer", "kind"), "mixer.kind: missing");
  ExpectRefused(Without("/tokenizer", "kind"), "tokenizer.kind: missing");
  const std::pair<const char*, const char*> of_mixers[] = {
      {"aft_local", "window"},
      {"aft_conv", "window"},
      {"aft_full", "band_rows"},
      {"location", "band_rows"},
      {"block_local", "block_size"},
      {"additive", "score_width"},
      {"aft_full band_rows=64", "bias"},
      {"wkv7", "heads"},
      {"wkv7 heads=3", "decay_rank"},
      {"wkv7 heads=3 decay_rank=4 rate_rank=5 value_rank=6", "gate_rank"}};
  for (const auto& [mixer, key] : of_mixers) {
    EXPECT_EQ(Refusal(Causal(mixer, 64)), absl::StrCat("mixer.", key, ": missing"));
  }
}

TEST(ConfigTest, UnknownKeysAreNamedWithTheirPath) {
  ExpectRefused(With("/dropout", 0.1), "dropout: unknown key; known: format_version, ");
  ExpectRefused(With("/mixer/windwo", 32), "mixer.windwo: unknown key; known: kind, window, ");
  ExpectRefused(With("/tokenizer/path", "x"), "tokenizer.path: unknown key; known: kind");
}

// The path as messages have it: "/mixer/window" becomes "mixer.window".
std::string Path(const char* pointer) {
  return absl::StrReplaceAll(std::string(pointer).substr(1), {{"/", "."}});
}

TEST(ConfigTest, IntegersOfOtherTypesAndOutOfRangeAreRefused) {
  struct Key {
    const char* pointer;
    int64_t min;
    int64_t max;
  };
  using Limits = std::numeric_limits<int64_t>;
  for (const auto& [pointer, min, max] : {Key{"/format_version", 1, 1},
                                          {"/vocab_size", 1, 1 << 24},
                                          {"/d_model", 1, 65536},
                                          {"/n_layers", 1, 1024},
                                          {"/d_ff", 1, 262144},
                                          {"/max_seq_len", 1, 2147483647},
                                          {"/mixer/window", 0, 65536},
                                          {"/mixer/band_rows", 0, 1 << 20},
                                          {"/mixer/prefix_block", 0, 2147483647},
                                          {"/mixer/hidden", 0, 65536},
                                          {"/mixer/heads", 1, 65536},
                                          {"/mixer/bias_rank", 0, 65536},
                                          {"/mixer/block_size", 1, 65536},
                                          {"/mixer/score_width", 1, 4096},
                                          {"/mixer/decay_rank", 1, 65536},
                                          {"/mixer/rate_rank", 1, 65536},
                                          {"/mixer/value_rank", 1, 65536},
                                          {"/mixer/gate_rank", 1, 65536}}) {
    for (const Json& wrong : {Json("7"), Json(true), Json(nullptr), Json(7.0), Json(1e300),
                              Json::array({7}), Json::object()}) {
      ExpectRefused(With(pointer, wrong), Path(pointer) + ": must be an integer, got ");
    }
    for (const Json& outside : {Json(min - 1), Json(max + 1), Json(Limits::min()),
                                Json(Limits::max()), Json(std::numeric_limits<uint64_t>::max())}) {
      ExpectRefused(With(pointer, outside), Path(pointer) + ": must be ");
      EXPECT_THAT(Refusal(With(pointer, outside)), HasSubstr("got " + outside.dump()));
    }
  }
}

TEST(ConfigTest, OtherValuesOfTheWrongKindAreRefused) {
  for (const char* pointer :
       {"/architecture", "/activation", "/norm", "/mixer/kind", "/tokenizer/kind"}) {
    for (const Json& wrong : {Json("other"), Json(""), Json(1), Json(nullptr), Json::object()}) {
      ExpectRefused(With(pointer, wrong), Path(pointer) + ": must be \"");
    }
  }
  EXPECT_EQ(Refusal(With("/architecture", "rnn")),
            "architecture: must be \"decoder_lm\" or \"encoder\" or \"mixer\", got \"rnn\"");
  for (const Json& wrong : {Json(0), Json("false"), Json(nullptr)}) {
    ExpectRefused(With("/tie_embeddings", wrong), "tie_embeddings: must be true or false, got ");
  }
  for (const Json& wrong : {Json("1e-5"), Json(false), Json(nullptr), Json::array()}) {
    ExpectRefused(With("/norm_eps", wrong), "norm_eps: must be a number, got ");
  }
  for (const Json& outside : {Json(0), Json(-1e-5), Json(1e-13), Json(0.11), Json(1e300)}) {
    ExpectRefused(With("/norm_eps", outside), "norm_eps: must be >= 1e-12 and <= 0.1, got ");
  }
  for (const Json& outside : {Json(0), Json(-1), Json(9e-7), Json(1.1e6)}) {
    ExpectRefused(With("/embedding_scale", outside),
                  "embedding_scale: must be >= 1e-06 and <= 1e+06, got ");
  }
  for (const Json& outside : {Json(-1e-6), Json(1.1)}) {
    ExpectRefused(
        With("/mixer/std_eps", outside, Causal("aft_conv window=4 heads=6 reparameterized=true")),
        "mixer.std_eps: must be >= 0 and <= 1, got ");
  }
  for (const Json& wrong : {Json(1), Json("aft_local"), Json(nullptr), Json::array()}) {
    ExpectRefused(With("/mixer", wrong), "mixer: must be an object, got ");
    ExpectRefused(With("/tokenizer", wrong), "tokenizer: must be an object, got ");
    ExpectRefused(wrong, "config: must be an object, got ");
  }
}

// ---- Rules between keys

// Every field that its kind does not use is named.
TEST(ConfigTest, FieldsOfOtherKindsAreRefusedByName) {
  for (const std::string field :
       {"window=4",          "band_rows=64",       "prefix_block=8",   "heads=2",
        "bias=full",         "bias_rank=3",        "ring=bf16",        "length_policy=zero",
        "std_eps=0.5",       "unbiased_std=false", "grid=true",        "reparameterized=true",
        "block_size=4",      "global_token=false", "full_decode=true", "score_width=8",
        "decay_rank=8",      "rate_rank=8",        "value_rank=8",     "gate_rank=8",
        "initial_state=true"}) {
    const bool of_simple = field == "prefix_block=8";
    const std::string kind = of_simple ? "location band_rows=64 " : "aft_simple ";
    ExpectRefused(Causal(kind + field, 64),
                  absl::StrCat("mixer.", field.substr(0, field.find('=')), ": must be absent or "));
  }
  // A field that has its default is accepted.
  Accepted(Causal("aft_simple window=0 heads=1 grid=false"));
}

TEST(ConfigTest, AConfigThatContradictsItselfIsRefused) {
  const std::string local = "aft_local window=4 ";
  const std::string conv = "aft_conv window=3 ";
  const std::pair<Json, const char*> refused[] = {
      // Heads and widths.
      {Causal("dot_product heads=5", 9), "mixer.heads: must divide the mixer's width (48), got 5"},
      {Causal("cosine heads=4 hidden=18", 9),
       "mixer.heads: must divide the mixer's width (18), got 4"},
      // Biases and their rows.
      {Causal("aft_full band_rows=9 bias=band", 9),
       "mixer.bias: must be \"full\" or \"factors\" for aft_full"},
      {Causal("aft_full band_rows=0 bias=full", 9),
       "mixer.band_rows: must be >= 1 for aft_full, got 0"},
      {Causal("aft_full band_rows=9 bias=full", 10),
       "mixer.band_rows: must be equal to max_seq_len (10), got 9"},
      {Causal("location band_rows=9", 10),
       "mixer.band_rows: must be equal to max_seq_len (10), got 9"},
      {Causal(local + "bias=full"), "mixer.band_rows: must be >= 1 for this mixer.bias"},
      {Causal(local + "band_rows=9"),
       "mixer.band_rows: must be 0 or equal to max_seq_len (absent), got 9"},
      {Causal(local + "band_rows=9", 8),
       "mixer.band_rows: must be 0 or equal to max_seq_len (8), got 9"},
      {Causal("aft_local window=0 band_rows=9", 9),
       "mixer.band_rows: must be absent or 0 without a window"},
      {Causal("aft_local window=0 band_rows=9 bias=full", 9),
       "mixer.bias: must be absent or \"band\" without a window"},
      {Causal(local + "length_policy=zero"),
       "mixer.length_policy: must be absent or \"error\" without mixer.band_rows"},
      {Causal(local + "band_rows=9 bias=factors", 9),
       "mixer.bias_rank: must be >= 1 with mixer.bias \"factors\", got 0"},
      {Causal("aft_full band_rows=1048576 bias=factors bias_rank=1", 1048576),
       "mixer.band_rows: must be at most 256 with mixer.bias \"factors\" and a window of 1048576, "
       "got 1048576"},
      {Causal(local + "band_rows=9 bias_rank=2", 9),
       "mixer.bias_rank: must be absent or 0 without mixer.bias \"factors\", got 2"},
      {Causal(local + "prefix_block=3"), "mixer.prefix_block: must be 0 or >= 4, got 3"},
      {Causal("aft_simple window=4"), "mixer.window: must be absent or 0 for aft_simple, got 4"},
      // Convolutions.
      {Causal("aft_conv window=0"), "mixer.window: must be >= 1 for aft_conv"},
      {Encoder("aft_conv window=6"),
       "mixer.window: must be odd for a bidirectional aft_conv, got 6"},
      {Module(conv + "grid=true"), "mixer.grid: must be false unless mixer.causal is false"},
      {Encoder(conv + "grid=true"),
       "tokenizer: must be absent with mixer.grid: images are not text"},
      {Causal(conv + "grid=true causal=false"),
       "mixer.causal: must be true for the architecture decoder_lm, got false"},
      {Module("aft_conv window=1025 causal=false grid=true"),
       "mixer.window: must be <= 1023 with mixer.grid, got 1025"},
      {Causal("aft_conv window=1 reparameterized=true"),
       "mixer.reparameterized: must be false with a mixer.window of 1"},
      {Causal(conv + "std_eps=1e-5"),
       "mixer.std_eps: must be absent or 0 unless mixer.reparameterized"},
      {Causal(conv + "unbiased_std=false"),
       "mixer.unbiased_std: must be absent or true unless mixer.reparameterized"},
      // Causal or not.
      {Encoder("aft_simple prefix_block=4"),
       "mixer.prefix_block: must be absent or 0 when mixer.causal is false, got 4"},
      {Encoder(local + "ring=bf16"),
       "mixer.ring: must be absent or \"fp32\" when mixer.causal is false: there is no ring, got "
       "\"bf16\""},
      {With("/max_seq_len", 9, Encoder("aft_full band_rows=9 bias=full ring=bf16")),
       "mixer.ring: must be absent or "},
      {Encoder(conv + "ring=bf16"), "mixer.ring: must be absent or "},
      {Module(conv + "causal=false grid=true ring=bf16"), "mixer.ring: must be absent or "},
      {Encoder("block_local block_size=4 full_decode=true"),
       "mixer.full_decode: must be false when mixer.causal is false"},
      {Causal("aft_simple causal=false"),
       "mixer.causal: must be true for the architecture decoder_lm, got false"},
      // Lengths.
      {Causal("dot_product"),
       "max_seq_len: must be >= 1 for dot_product: a sequence's state grows"},
      {Causal("cosine"), "max_seq_len: must be >= 1 for cosine: a sequence's state grows"},
      {Causal("block_local block_size=4 full_decode=true"),
       "max_seq_len: must be >= 1 for block_local"},
      {With("/n_layers", 1024, Causal("additive hidden=65536 heads=65536 score_width=4096", 2048)),
       "max_seq_len: must be <= 2047 for 1024 layers of additive"},
      // The parts of RWKV need each other.
      {With("/feed_forward", "channel_mix"),
       "feed_forward: must be absent or \"mlp\" for aft_local, got \"channel_mix\""},
      {Causal("wkv4"), "feed_forward: must be \"channel_mix\" or \"gated_channel_mix\" for wkv4"},
      {With("/qkv_bias", true, Rwkv("wkv4", "channel_mix")), "qkv_bias: must be false for wkv4"},
      {With("/norm_position", "post", Rwkv(kWkv7, "channel_mix")),
       "norm_position: must be absent or \"pre\" for wkv7"},
      {With("/feed_forward_every", 2, Rwkv("wkv4", "channel_mix")),
       "feed_forward_every: must be absent or 1 for wkv4"},
      {Rwkv("wkv4 hidden=24", "channel_mix"), "mixer.hidden: must be absent or d_model for wkv4"},
      {Rwkv("wkv7 heads=5 decay_rank=1 rate_rank=1 value_rank=1 gate_rank=1", "channel_mix"),
       "mixer.heads: must divide the mixer's width (48), got 5"},
      {Module("wkv4"), "architecture: must be decoder_lm for wkv4"},
      {Encoder("wkv4"), "architecture: must be decoder_lm for wkv4"},
      // Vocabularies.
      {With("/vocab_size", 65), "vocab_size: must be 256 with the bytes tokenizer, got 65"},
  };
  for (const auto& [json, message] : refused) ExpectRefused(json, message);
  Accepted(Causal(local + "band_rows=9 length_policy=zero"));
  Accepted(Causal(local + "band_rows=9 length_policy=clamp", 5));
  Accepted(Causal(local + "prefix_block=4"));
  for (const char* tokenizer : {"chars", "bpe", "world"}) {
    const Json json = With("/tokenizer/kind", tokenizer, With("/vocab_size", 65));
    EXPECT_EQ(Accepted(json).tokenizer, tokenizer);
  }
}

TEST(ConfigTest, PositionsLimitTheLength) {
  const auto with = [](Json position, int64_t max_seq_len) {
    return With("/position", std::move(position), Causal("aft_simple", max_seq_len));
  };
  const Json learned = {{"kind", "learned"}, {"rows", 99}};
  EXPECT_EQ(Refusal(with(learned, 100)),
            "max_seq_len: must be >= 1 and <= position.rows (99), got 100");
  EXPECT_EQ(Refusal(with(learned, 0)),
            "max_seq_len: must be >= 1 and <= position.rows (99), got absent");
  EXPECT_EQ(Accepted(with(learned, 99)).position_rows, 99);
  EXPECT_EQ(Refusal(with({{"kind", "learned"}}, 99)), "position.rows: missing");
  EXPECT_EQ(Refusal(with({{"kind", "sinusoidal"}, {"rows", 99}}, 99)),
            "position.rows: must be absent for sinusoidal");
  ExpectRefused(with({{"kind", "rotary"}}, 99),
                "position.kind: must be \"none\" or \"learned\" or ");
  EXPECT_EQ(Refusal(with(3, 99)), "position: must be an object, got 3");
}

TEST(ConfigTest, ArchitecturesRefuseKeysThatTheyDoNotHave) {
  const Json module = Module("aft_simple");
  for (const char* key : {"vocab_size", "d_ff", "activation", "norm", "norm_eps", "position",
                          "embedding_scale", "head_bias", "tie_embeddings", "tokenizer"}) {
    Json more = module;
    more[key] = 1;
    EXPECT_EQ(Refusal(more), absl::StrCat(key, ": must be absent for the architecture mixer"));
  }
  EXPECT_EQ(Refusal(With("/n_layers", 2, module)), "n_layers: must be 1, got 2");
}

// ---- The text

TEST(ConfigTest, DuplicateKeysAreNamedWithTheirPath) {
  const auto insert_before = [](const std::string& place, const std::string& addition) {
    std::string changed = Valid().dump();
    changed.insert(changed.find(place), addition);
    return Refusal(changed);
  };
  EXPECT_EQ(insert_before("\"d_model\"", "\"d_model\": 1, "), "d_model: given more than once");
  EXPECT_EQ(insert_before("\"window\"", "\"window\": 32, "), "mixer.window: given more than once");
  EXPECT_EQ(Refusal(std::string(R"({"": 1, "": 2})")), "\"\": given more than once");
}

TEST(ConfigTest, TextThatIsNotJsonIsRefused) {
  const std::string valid = Valid().dump();
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("nul"), valid + "x", valid + valid,
        std::string("{\"a\xFF\": 1}"), "// note\n" + valid, std::string("{\"norm_eps\": 1e999}"),
        // A NUL would end the parser's input, and deep nesting would exhaust a stack.
        valid + std::string("\0{", 2), std::string(500'000, '[')}) {
    EXPECT_THAT(Refusal(text), StartsWith("not valid JSON"));
  }
  EXPECT_THAT(Refusal(std::string(2 << 20, ' ')), HasSubstr("at most 1048576"));
  EXPECT_THAT(Refusal("{\"mixer\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}"),
              HasSubstr("not valid JSON: too many levels"));
}

// The long list has 16 times the objects of the short one. A parser that looks at all objects of
// the list for each of them needs 256 times the time for it.
TEST(ConfigTest, ALongListOfObjectsIsReadInLinearTime) {
  const auto seconds = [](size_t bytes) {
    std::string text = R"({"x": [{})";
    while (text.size() < bytes - 8) text += ",{}";
    text += "]}";
    timespec begin{}, end{};
    EXPECT_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin), 0);
    EXPECT_THAT(Refusal(text), StartsWith("x: unknown key"));
    EXPECT_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end), 0);
    return static_cast<double>(end.tv_sec - begin.tv_sec) +
           1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
  };
  // Other programs make a reading longer, never shorter.
  const auto least = [&](size_t bytes, int times) {
    double found = seconds(bytes);
    for (int i = 1; i < times; ++i) found = std::min(found, seconds(bytes));
    return found;
  };
  EXPECT_LT(least(1 << 20, 3), 64 * least(1 << 16, 20));
}

TEST(ConfigTest, QuotationsInMessagesAreShortAndValidUtf8) {
  const auto end = testing::EndsWith("...");
  EXPECT_THAT(Refusal(std::string("{\"a\xFF\": 1}")), HasSubstr("a\xEF\xBF\xBD"));
  EXPECT_THAT(Refusal("{\"" + std::string(1000, 'x')),
              testing::AllOf(end, testing::SizeIs(testing::Lt(300))));
  // A key that is cut within a character, and a path of many keys.
  EXPECT_THAT(Refusal("{\"" + std::string(199, 'x') + "\xC3\xA9\": 1}"),
              HasSubstr("x\xEF\xBF\xBD...: unknown key"));
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "{\"key\":";
  EXPECT_THAT(Refusal(deep + "{\"a\":1,\"a\":1}" + std::string(1000, '}')),
              HasSubstr("....: given more than once"));
}

}  // namespace
}  // namespace aft
