#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "model/config/config.h"
#include "model/config/json_fields.h"
#include "model/config/kinds.h"
#include "model/config/mixer_fields.h"
#include "model/config/tensors.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

// More caps like those of mixer_fields.h.
constexpr int64_t kMaxVocabSize = int64_t{1} << 24;
constexpr int64_t kMaxFfnWidth = int64_t{1} << 18;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxPositionRows = int64_t{1} << 24;
constexpr double kMinNormEps = 1e-12;
constexpr double kMaxNormEps = 0.1;
constexpr double kMinScale = 1e-6;
constexpr double kMaxScale = 1e6;

constexpr size_t kMostFrameIds = 64;
constexpr size_t kMinLabels = 2;
constexpr size_t kMaxLabels = size_t{1} << 16;
constexpr size_t kMaxLabelBytes = 256;

constexpr int64_t kFormatVersion = 1;

constexpr Named<Architecture> kArchitectureNames[] = {{Architecture::kDecoderLm, "decoder_lm"},
                                                      {Architecture::kEncoder, "encoder"},
                                                      {Architecture::kMixer, "mixer"}};
constexpr Named<Activation> kActivationNames[] = {{Activation::kRelu, "relu"},
                                                  {Activation::kGelu, "gelu"},
                                                  {Activation::kGeluTanh, "gelu_tanh"},
                                                  {Activation::kSquaredRelu, "squared_relu"}};
constexpr Named<FeedForwardKind> kFeedForwardNames[] = {
    {FeedForwardKind::kMlp, "mlp"},
    {FeedForwardKind::kChannelMix, "channel_mix"},
    {FeedForwardKind::kGatedChannelMix, "gated_channel_mix"}};
constexpr Named<bool> kNormPositionNames[] = {{false, "pre"}, {true, "post"}};
constexpr Named<PositionKind> kPositionNames[] = {{PositionKind::kNone, "none"},
                                                  {PositionKind::kLearned, "learned"},
                                                  {PositionKind::kSinusoidal, "sinusoidal"}};

constexpr Named<Pooling> kPoolingNames[] = {
    {Pooling::kMean, "mean"}, {Pooling::kFirst, "first"}, {Pooling::kLast, "last"}};

constexpr char kCommonKeys[] =
    "format_version architecture d_model n_layers qkv_bias max_seq_len mixer";
// Keys that a single mixer does not have.
constexpr char kNetworkKeys[] =
    "vocab_size feed_forward feed_forward_every d_ff activation norm norm_eps norm_position "
    "final_norm embedding_norm embedding_scale position vocabulary_head head_bias tie_embeddings "
    "tokenizer labels pooling normalize";
constexpr char kNotOfDecoder[] = "labels vocabulary_head pooling normalize";
constexpr const char* kNotOfHeads[] = {"pooling", "normalize"};
constexpr const char* kOfVocabularyHead[] = {"head_bias", "tie_embeddings"};

absl::Status CheckAbsent(const JsonFields& fields, Architecture architecture) {
  const auto check = [&](absl::string_view keys) -> absl::Status {
    for (const std::string& key : std::vector<std::string>(absl::StrSplit(keys, ' '))) {
      if (!fields.Has(key.c_str())) continue;
      return KeyError(key, absl::StrCat("must be absent for the architecture ",
                                        NameOf(kArchitectureNames, architecture)));
    }
    return absl::OkStatus();
  };
  if (architecture == Architecture::kMixer) return check(kNetworkKeys);
  if (architecture == Architecture::kDecoderLm) return check(kNotOfDecoder);
  return absl::OkStatus();
}

absl::Status ReadPosition(const nlohmann::json& json, NetworkConfig* config) {
  JsonFields fields(json, "position", {"kind", "rows"});
  ReadEnum(fields, "kind", kPositionNames, &config->position);
  if (config->position == PositionKind::kLearned) {
    fields.Integer("rows", 1, kMaxPositionRows, &config->position_rows);
  } else if (fields.Has("rows")) {
    return KeyError("position.rows",
                    absl::StrCat("must be absent for ", NameOf(kPositionNames, config->position)));
  }
  return fields.status();
}

// Reads a list of ids of the vocabulary. An absent key is no error.
absl::Status ReadIds(const nlohmann::json& json, const char* key, const NetworkConfig& config,
                     std::vector<int32_t>* ids) {
  const auto list = json.find(key);
  if (list == json.end()) return absl::OkStatus();
  bool fits = list->is_array() && list->size() <= kMostFrameIds;
  for (size_t i = 0; fits && i < list->size(); ++i) {
    const nlohmann::json& id = (*list)[i];
    fits = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(config.vocab_size);
    if (fits) ids->push_back(id.get<int32_t>());
  }
  if (fits) return absl::OkStatus();
  return KeyError(
      absl::StrCat("tokenizer.", key),
      absl::StrCat("must be a list of at most ", kMostFrameIds, " ids below ", config.vocab_size));
}

absl::Status ReadTokenizer(const nlohmann::json& json, NetworkConfig* config) {
  JsonFields fields(json, "tokenizer", {"kind", "prefix", "suffix"});
  fields.Name("kind", {"bytes", "chars", "bpe", "world", "none"}, &config->tokenizer);
  AFT_RETURN_IF_ERROR(fields.status());
  const bool encoder = config->architecture == Architecture::kEncoder;
  if (config->tokenizer == "none") {
    if (!encoder) return KeyError("tokenizer.kind", "\"none\" is for the architecture encoder");
    config->tokenizer.clear();
  }
  for (const char* key : {"prefix", "suffix"}) {
    if (fields.Has(key) && (!encoder || config->tokenizer.empty())) {
      return KeyError(absl::StrCat("tokenizer.", key),
                      "must be absent except for an encoder with a tokenizer");
    }
  }
  AFT_RETURN_IF_ERROR(ReadIds(json, "prefix", *config, &config->text_prefix));
  return ReadIds(json, "suffix", *config, &config->text_suffix);
}

// Reads the keys that a network has and a single mixer does not have.
absl::Status ReadNetwork(JsonFields& fields, NetworkConfig* config) {
  std::string norm;
  fields.Integer("vocab_size", 1, kMaxVocabSize, &config->vocab_size);
  if (fields.Has("feed_forward")) {
    ReadEnum(fields, "feed_forward", kFeedForwardNames, &config->feed_forward);
  }
  fields.Integer("d_ff", 1, kMaxFfnWidth, &config->d_ff);
  ReadEnum(fields, "activation", kActivationNames, &config->activation);
  fields.Name("norm", {"layer_norm"}, &norm);
  fields.Number("norm_eps", kMinNormEps, kMaxNormEps, &config->norm_eps);
  if (fields.Has("embedding_scale")) {
    fields.Number("embedding_scale", kMinScale, kMaxScale, &config->embedding_scale);
  }
  if (fields.Has("vocabulary_head")) fields.Bool("vocabulary_head", &config->vocabulary_head);
  if (HasVocabularyHead(*config)) {
    fields.Bool("tie_embeddings", &config->tie_embeddings);
    if (fields.Has("head_bias")) fields.Bool("head_bias", &config->head_bias);
  } else {
    for (const char* key : kOfVocabularyHead) {
      if (fields.Has(key)) {
        return KeyError(key, "must be absent for an encoder without vocabulary_head");
      }
    }
  }
  if (fields.Has("embedding_norm")) fields.Bool("embedding_norm", &config->embedding_norm);
  if (fields.Has("norm_position")) {
    ReadEnum(fields, "norm_position", kNormPositionNames, &config->post_norm);
  }
  if (fields.Has("final_norm")) fields.Bool("final_norm", &config->final_norm);
  if (fields.Has("feed_forward_every")) {
    fields.Integer("feed_forward_every", 1, config->n_layers, &config->feed_forward_every);
  }
  if (fields.Has("position")) {
    AFT_RETURN_IF_ERROR(ReadPosition(*fields.Find("position"), config));
  }
  if (fields.Has("labels")) {
    fields.Strings("labels", kMinLabels, kMaxLabels, kMaxLabelBytes, &config->labels);
  }
  if (HeadRows(*config) > 0) {
    for (const char* key : kNotOfHeads) {
      if (fields.Has(key)) return KeyError(key, "must be absent for a network with a head");
    }
  }
  if (fields.Has("pooling")) ReadEnum(fields, "pooling", kPoolingNames, &config->pooling);
  if (fields.Has("normalize")) fields.Bool("normalize", &config->normalize);
  if (config->mixer.grid && !fields.Has("tokenizer")) {
    config->tokenizer.clear();
    return fields.status();
  }
  const nlohmann::json* tokenizer = fields.Find("tokenizer");
  AFT_RETURN_IF_ERROR(fields.status());
  return ReadTokenizer(*tokenizer, config);
}

void WriteNetwork(const NetworkConfig& config, nlohmann::ordered_json* json) {
  const NetworkConfig defaults;
  if (config.feed_forward != defaults.feed_forward) {
    (*json)["feed_forward"] = NameOf(kFeedForwardNames, config.feed_forward);
  }
  (*json)["d_ff"] = config.d_ff;
  (*json)["activation"] = NameOf(kActivationNames, config.activation);
  (*json)["norm"] = "layer_norm";
  (*json)["norm_eps"] = ShortestDouble(config.norm_eps);
  if (config.position != defaults.position) {
    (*json)["position"]["kind"] = NameOf(kPositionNames, config.position);
    if (config.position_rows != 0) (*json)["position"]["rows"] = config.position_rows;
  }
  if (config.embedding_scale != defaults.embedding_scale) {
    (*json)["embedding_scale"] = ShortestDouble(config.embedding_scale);
  }
  if (config.embedding_norm) (*json)["embedding_norm"] = true;
  if (config.post_norm) (*json)["norm_position"] = "post";
  if (!config.final_norm) (*json)["final_norm"] = false;
  if (config.feed_forward_every != 1) (*json)["feed_forward_every"] = config.feed_forward_every;
  if (config.vocabulary_head) (*json)["vocabulary_head"] = true;
  if (HasVocabularyHead(config)) {
    if (config.head_bias != defaults.head_bias) (*json)["head_bias"] = config.head_bias;
    (*json)["tie_embeddings"] = config.tie_embeddings;
  }
}

// ---- Rules between keys; each key alone is known to be in its range

constexpr int64_t kByteVocabSize = 256;

absl::Status CheckMixer(const NetworkConfig& config) {
  AFT_RETURN_IF_ERROR(CheckUnusedFields(config.mixer));
  for (const auto rule : SpecOf(config.mixer.kind).rules) AFT_RETURN_IF_ERROR(rule(config));
  return absl::OkStatus();
}

// A state that grows is a product of three sizes. Each may be in its range while the number of
// bytes of the state does not fit into 64 bits.
absl::Status CheckStateSize(const NetworkConfig& config) {
  constexpr int64_t kMostNumbers = int64_t{1} << 50;
  const int64_t width =
      PackedWidth(config.mixer, MixerWidth(config));  // of a token, query included
  const int64_t most = kMostNumbers / (config.n_layers * width);
  if (config.max_seq_len <= most) return absl::OkStatus();
  return KeyError("max_seq_len",
                  absl::StrCat("must be <= ", most, " for ", config.n_layers, " layers of ",
                               MixerKindName(config.mixer.kind), " that keep up to ", width,
                               " numbers per token, got ", config.max_seq_len));
}

absl::Status CheckLength(const NetworkConfig& config) {
  const int64_t rows = config.position_rows;
  if (config.position == PositionKind::kLearned &&
      (config.max_seq_len == 0 || config.max_seq_len > rows)) {
    return KeyError("max_seq_len", absl::StrCat("must be >= 1 and <= position.rows (", rows,
                                                "), got ", OrAbsent(config.max_seq_len)));
  }
  if (config.mixer.causal && StateGrows(config.mixer) && config.max_seq_len == 0) {
    return KeyError("max_seq_len",
                    absl::StrCat("must be >= 1 for ", MixerKindName(config.mixer.kind),
                                 ": a sequence's state grows with it, got absent"));
  }
  return config.mixer.causal && StateGrows(config.mixer) ? CheckStateSize(config)
                                                         : absl::OkStatus();
}

// The parts of RWKV need each other: both halves of its layers read the token before each token,
// which exists only where a text is read from its beginning, step by step.
absl::Status CheckTokenShift(const NetworkConfig& config) {
  const KindSpec& kind = SpecOf(config.mixer.kind);
  if (!kind.token_shift) {
    if (!ShiftsFeedForward(config)) return absl::OkStatus();
    return KeyError("feed_forward",
                    absl::StrCat("must be absent or \"mlp\" for ", kind.name, ", got \"",
                                 NameOf(kFeedForwardNames, config.feed_forward), "\""));
  }
  const auto needs = [&](bool fits, const char* key, const char* what) -> absl::Status {
    return fits ? absl::OkStatus() : KeyError(key, absl::StrCat(what, " for ", kind.name));
  };
  AFT_RETURN_IF_ERROR(
      needs(config.architecture == Architecture::kDecoderLm, "architecture", "must be decoder_lm"));
  AFT_RETURN_IF_ERROR(needs(ShiftsFeedForward(config), "feed_forward",
                            "must be \"channel_mix\" or \"gated_channel_mix\""));
  AFT_RETURN_IF_ERROR(needs(config.mixer.hidden == 0 || config.mixer.hidden == config.d_model,
                            "mixer.hidden", "must be absent or d_model"));
  AFT_RETURN_IF_ERROR(needs(!config.qkv_bias, "qkv_bias", "must be false"));
  AFT_RETURN_IF_ERROR(needs(!config.post_norm, "norm_position", "must be absent or \"pre\""));
  return needs(config.feed_forward_every == 1, "feed_forward_every", "must be absent or 1");
}

absl::Status CheckConfigRules(const NetworkConfig& config) {
  AFT_RETURN_IF_ERROR(CheckMixer(config));
  AFT_RETURN_IF_ERROR(CheckTokenShift(config));
  AFT_RETURN_IF_ERROR(CheckLength(config));
  if (config.architecture == Architecture::kDecoderLm && !config.mixer.causal) {
    return KeyError("mixer.causal", "must be true for the architecture decoder_lm, got false");
  }
  if (config.n_layers % config.feed_forward_every != 0) {
    return KeyError("feed_forward_every", absl::StrCat("must divide n_layers (", config.n_layers,
                                                       "), got ", config.feed_forward_every));
  }
  if (config.vocabulary_head && !config.labels.empty()) {
    return KeyError("vocabulary_head", "must be absent or false with labels: there is one head");
  }
  if (config.mixer.grid && !config.tokenizer.empty()) {
    return KeyError("tokenizer", "must be absent with mixer.grid: images are not text");
  }
  if (config.tokenizer == "bytes" && config.vocab_size != kByteVocabSize) {
    return KeyError("vocab_size",
                    absl::StrCat("must be ", kByteVocabSize, " with the bytes tokenizer, got ",
                                 config.vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NetworkConfig> ParseNetworkConfig(absl::string_view json) {
  AFT_ASSIGN_OR_RETURN(const nlohmann::json root, ParseStrictJson(json));
  const std::string keys = absl::StrCat(kCommonKeys, " ", kNetworkKeys);
  JsonFields fields(root, "", absl::StrSplit(keys, ' '));
  NetworkConfig config;
  int64_t format_version = 0;
  fields.Integer("format_version", kFormatVersion, kFormatVersion, &format_version);
  ReadEnum(fields, "architecture", kArchitectureNames, &config.architecture);
  AFT_RETURN_IF_ERROR(fields.status());
  AFT_RETURN_IF_ERROR(CheckAbsent(fields, config.architecture));

  const bool network = config.architecture != Architecture::kMixer;
  fields.Integer("d_model", 1, kMaxWidth, &config.d_model);
  fields.Integer("n_layers", 1, network ? kMaxLayers : 1, &config.n_layers);
  if (fields.Has("max_seq_len")) {
    fields.Integer("max_seq_len", 1, kMaxPositions, &config.max_seq_len);
  }
  if (fields.Has("qkv_bias")) fields.Bool("qkv_bias", &config.qkv_bias);
  const nlohmann::json* mixer = fields.Find("mixer");
  AFT_RETURN_IF_ERROR(fields.status());
  AFT_RETURN_IF_ERROR(ReadMixerConfig(*mixer, &config.mixer));
  if (network) {
    AFT_RETURN_IF_ERROR(ReadNetwork(fields, &config));
  } else {
    config.tokenizer.clear();
  }
  AFT_RETURN_IF_ERROR(CheckConfigRules(config));
  return config;
}

std::string FormatNetworkConfig(const NetworkConfig& config) {
  const bool network = config.architecture != Architecture::kMixer;
  nlohmann::ordered_json json;
  json["format_version"] = kFormatVersion;
  json["architecture"] = NameOf(kArchitectureNames, config.architecture);
  if (network) json["vocab_size"] = config.vocab_size;
  json["d_model"] = config.d_model;
  json["n_layers"] = config.n_layers;
  if (network) WriteNetwork(config, &json);
  if (!config.qkv_bias) json["qkv_bias"] = false;
  if (config.max_seq_len != 0) json["max_seq_len"] = config.max_seq_len;
  json["mixer"] = WriteMixerConfig(config.mixer);
  if (!config.tokenizer.empty()) {
    json["tokenizer"]["kind"] = config.tokenizer;
    if (!config.text_prefix.empty()) json["tokenizer"]["prefix"] = config.text_prefix;
    if (!config.text_suffix.empty()) json["tokenizer"]["suffix"] = config.text_suffix;
  } else if (network && !config.mixer.grid) {
    json["tokenizer"]["kind"] = "none";
  }
  if (!config.labels.empty()) json["labels"] = config.labels;
  if (config.pooling != NetworkConfig().pooling) {
    json["pooling"] = NameOf(kPoolingNames, config.pooling);
  }
  if (config.normalize) json["normalize"] = true;
  return DumpJson(json, 2) + "\n";
}

bool StateGrows(const MixerConfig& mixer) {
  const KindSpec& spec = SpecOf(mixer.kind);
  return spec.state_grows != nullptr && spec.state_grows(mixer);
}

const char* MixerKindName(MixerKind kind) { return SpecOf(kind).name; }

int64_t CountParameters(const NetworkConfig& config) {
  int64_t count = 0;
  for (const TensorSpec& spec : ExpectedTensors(config)) count += spec.count();
  return count;
}

}  // namespace aft
