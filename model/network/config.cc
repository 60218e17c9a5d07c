#include "model/network/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using Json = nlohmann::json;

// Caps keep every product of sizes (weights, state bytes, offsets) far below 2^63.
constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr int64_t kMaxVocabSize = int64_t{1} << 24;
constexpr int64_t kMaxWidth = int64_t{1} << 16;
constexpr int64_t kMaxFfnWidth = int64_t{1} << 18;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxWindow = int64_t{1} << 16;
constexpr int64_t kMaxBandRows = int64_t{1} << 20;
constexpr int64_t kMaxPositions = std::numeric_limits<int32_t>::max();
constexpr double kMinNormEps = 1e-12;
constexpr double kMaxNormEps = 0.1;

constexpr int64_t kFormatVersion = 1;
constexpr int64_t kByteVocabSize = 256;

absl::Status KeyError(absl::string_view key, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", problem));
}

// Keys and values in messages are shortened, and escaped: they come from a file that nobody vouches
// for.
std::string ShowKey(absl::string_view text) {
  constexpr size_t kMaxShown = 80;
  return absl::StrCat(absl::Utf8SafeCHexEscape(text.substr(0, kMaxShown)),
                      text.size() > kMaxShown ? "..." : "");
}
std::string Show(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  constexpr size_t kMaxShown = 80;
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  return absl::StrCat(text.substr(0, kMaxShown), text.size() > kMaxShown ? "..." : "");
}

// Parses JSON text and refuses duplicate keys, of which nlohmann::json would keep the last.
absl::StatusOr<Json> ParseJson(absl::string_view text) {
  if (text.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("config is ", text.size(), " bytes; at most ", kMaxConfigBytes));
  }
  if (text.find('\0') != absl::string_view::npos) {
    // The parser takes a NUL for the end of its input, and would not look at what follows.
    return absl::InvalidArgumentError("config is not valid JSON: it has a NUL byte");
  }
  struct Level {
    std::set<std::string> keys;
    std::string current;  // the key whose value is being read
  };
  std::vector<Level> levels;
  std::string duplicate;
  const auto watch = [&](int /*depth*/, Json::parse_event_t event, const Json& value) {
    if (event == Json::parse_event_t::object_start) {
      levels.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      levels.pop_back();
    } else if (event == Json::parse_event_t::key) {
      Level& level = levels.back();
      level.current = value.get<std::string>();
      if (!level.keys.insert(level.current).second && duplicate.empty()) {
        duplicate = absl::StrJoin(levels, ".", [](std::string* out, const Level& l) {
          absl::StrAppend(out, ShowKey(l.current));
        });
      }
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), watch);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("config is not valid JSON: ", absl::Utf8SafeCHexEscape(error.what())));
  }
  if (!duplicate.empty()) return KeyError(duplicate, "given more than once");
  return json;
}

// Reads the members of one JSON object into plain values. The first error sticks, later reads do
// nothing.
class Fields {
 public:
  // `path` is "" for the outermost object, else its key; `known` lists every key it may have.
  Fields(const Json& object, absl::string_view path, std::initializer_list<absl::string_view> known)
      : object_(object), prefix_(path.empty() ? "" : absl::StrCat(path, ".")) {
    if (!object.is_object()) {
      Fail(path.empty() ? "config" : path, absl::StrCat("must be an object, got ", Show(object)));
      return;
    }
    for (const auto& member : object.items()) {
      if (std::find(known.begin(), known.end(), absl::string_view(member.key())) == known.end()) {
        Fail(absl::StrCat(prefix_, ShowKey(member.key())),
             absl::StrCat("unknown key; known: ", absl::StrJoin(known, ", ")));
        return;
      }
    }
  }

  const absl::Status& status() const { return status_; }

  bool Has(const char* key) const { return status_.ok() && object_.contains(key); }

  void Integer(const char* key, int64_t min, int64_t max, int64_t* out) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    // Numbers above 2^63 are unsigned in nlohmann::json, and those above 2^64 are floats.
    const bool fits = value->is_number_integer() &&
                      (!value->is_number_unsigned() ||
                       value->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
    if (!value->is_number_integer()) {
      Fail(absl::StrCat(prefix_, key), absl::StrCat("must be an integer, got ", Show(*value)));
    } else if (!fits || value->get<int64_t>() < min || value->get<int64_t>() > max) {
      Fail(absl::StrCat(prefix_, key),
           min == max ? absl::StrCat("must be ", min, ", got ", Show(*value))
                      : absl::StrCat("must be >= ", min, " and <= ", max, ", got ", Show(*value)));
    } else {
      *out = value->get<int64_t>();
    }
  }
  void OptionalInteger(const char* key, int64_t min, int64_t max, int64_t* out) {
    if (Has(key)) Integer(key, min, max, out);
  }

  void Number(const char* key, double min, double max, float* out) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_number()) {
      Fail(absl::StrCat(prefix_, key), absl::StrCat("must be a number, got ", Show(*value)));
    } else if (const double number = value->get<double>(); !(number >= min && number <= max)) {
      Fail(absl::StrCat(prefix_, key),
           absl::StrCat("must be >= ", min, " and <= ", max, ", got ", Show(*value)));
    } else {
      *out = static_cast<float>(number);
    }
  }

  void Bool(const char* key, bool* out) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_boolean()) {
      Fail(absl::StrCat(prefix_, key), absl::StrCat("must be true or false, got ", Show(*value)));
    } else {
      *out = value->get<bool>();
    }
  }

  // One of `allowed`.
  void Name(const char* key, std::initializer_list<absl::string_view> allowed, std::string* out) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_string() ||
        std::find(allowed.begin(), allowed.end(),
                  absl::string_view(value->get_ref<const std::string&>())) == allowed.end()) {
      Fail(
          absl::StrCat(prefix_, key),
          absl::StrCat("must be \"", absl::StrJoin(allowed, "\" or \""), "\", got ", Show(*value)));
    } else {
      *out = value->get<std::string>();
    }
  }

  // The member itself, for an object within; null after an error.
  const Json* Find(const char* key) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(key);
    if (found == object_.end()) {
      Fail(absl::StrCat(prefix_, key), "missing");
      return nullptr;
    }
    return &*found;
  }

 private:
  void Fail(absl::string_view key, absl::string_view problem) { status_ = KeyError(key, problem); }

  const Json& object_;
  const std::string prefix_;
  absl::Status status_;
};

absl::Status ReadMixer(const Json& json, MixerConfig* mixer) {
  Fields fields(json, "mixer", {"kind", "window", "band_rows", "prefix_block"});
  std::string kind;
  fields.Name("kind", {"aft_simple", "aft_local"}, &kind);
  mixer->kind = kind == "aft_simple" ? MixerKind::kAftSimple : MixerKind::kAftLocal;
  if (mixer->kind == MixerKind::kAftLocal) {
    fields.Integer("window", 0, kMaxWindow, &mixer->window);
  } else {
    fields.OptionalInteger("window", 0, kMaxWindow, &mixer->window);
  }
  fields.OptionalInteger("band_rows", 0, kMaxBandRows, &mixer->band_rows);
  fields.OptionalInteger("prefix_block", 0, kMaxPositions, &mixer->prefix_block);
  return fields.status();
}

// Rules between keys; each key alone is in range already.
absl::Status CheckTogether(const NetworkConfig& config) {
  const MixerConfig& mixer = config.mixer;
  if (mixer.kind == MixerKind::kAftSimple && mixer.window != 0) {
    return KeyError("mixer.window",
                    absl::StrCat("must be absent or 0 for aft_simple, got ", mixer.window));
  }
  if (mixer.band_rows > 0 && mixer.window == 0) {
    return KeyError("mixer.band_rows",
                    absl::StrCat("must be absent or 0 without a window, got ", mixer.band_rows));
  }
  if (mixer.band_rows > 0 && config.max_seq_len != mixer.band_rows) {
    return KeyError("mixer.band_rows",
                    absl::StrCat("must be 0 or equal to max_seq_len (",
                                 config.max_seq_len == 0 ? std::string("absent")
                                                         : absl::StrCat(config.max_seq_len),
                                 "), got ", mixer.band_rows));
  }
  const int64_t min_block = std::max<int64_t>(mixer.window, 1);
  if (mixer.prefix_block != 0 && mixer.prefix_block < min_block) {
    return KeyError("mixer.prefix_block",
                    absl::StrCat("must be 0 or >= ", min_block, ", got ", mixer.prefix_block));
  }
  if (config.tokenizer == "bytes" && config.vocab_size != kByteVocabSize) {
    return KeyError("vocab_size",
                    absl::StrCat("must be ", kByteVocabSize, " with the bytes tokenizer, got ",
                                 config.vocab_size));
  }
  return absl::OkStatus();
}

// The double whose shortest decimal form is that of `value`: 1e-05, not 9.99999974737875e-06.
double ShortestDouble(float value) {
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text) - 1, value);
  *end.ptr = '\0';
  return std::strtod(text, nullptr);
}

}  // namespace

absl::StatusOr<NetworkConfig> ParseNetworkConfig(absl::string_view json) {
  AFT_ASSIGN_OR_RETURN(const Json root, ParseJson(json));
  Fields fields(
      root, "",
      {"format_version", "architecture", "vocab_size", "d_model", "n_layers", "d_ff", "activation",
       "norm", "norm_eps", "tie_embeddings", "max_seq_len", "mixer", "tokenizer"});
  NetworkConfig config;
  int64_t format_version = 0;
  std::string only_one_allowed;
  fields.Integer("format_version", kFormatVersion, kFormatVersion, &format_version);
  fields.Name("architecture", {"decoder_lm"}, &only_one_allowed);
  fields.Integer("vocab_size", 1, kMaxVocabSize, &config.vocab_size);
  fields.Integer("d_model", 1, kMaxWidth, &config.d_model);
  fields.Integer("n_layers", 1, kMaxLayers, &config.n_layers);
  fields.Integer("d_ff", 1, kMaxFfnWidth, &config.d_ff);
  fields.Name("activation", {"gelu_tanh"}, &only_one_allowed);
  fields.Name("norm", {"layer_norm"}, &only_one_allowed);
  fields.Number("norm_eps", kMinNormEps, kMaxNormEps, &config.norm_eps);
  fields.Bool("tie_embeddings", &config.tie_embeddings);
  fields.OptionalInteger("max_seq_len", 1, kMaxPositions, &config.max_seq_len);
  const Json* mixer = fields.Find("mixer");
  const Json* tokenizer = fields.Find("tokenizer");
  AFT_RETURN_IF_ERROR(fields.status());

  AFT_RETURN_IF_ERROR(ReadMixer(*mixer, &config.mixer));
  Fields tokenizer_fields(*tokenizer, "tokenizer", {"kind"});
  tokenizer_fields.Name("kind", {"bytes"}, &config.tokenizer);
  AFT_RETURN_IF_ERROR(tokenizer_fields.status());
  AFT_RETURN_IF_ERROR(CheckTogether(config));
  return config;
}

std::string FormatNetworkConfig(const NetworkConfig& config) {
  nlohmann::ordered_json mixer;
  mixer["kind"] = MixerKindName(config.mixer.kind);
  if (config.mixer.kind != MixerKind::kAftSimple || config.mixer.window != 0)
    mixer["window"] = config.mixer.window;
  if (config.mixer.band_rows != 0) mixer["band_rows"] = config.mixer.band_rows;
  if (config.mixer.prefix_block != 0) mixer["prefix_block"] = config.mixer.prefix_block;

  nlohmann::ordered_json json;
  json["format_version"] = kFormatVersion;
  json["architecture"] = "decoder_lm";
  json["vocab_size"] = config.vocab_size;
  json["d_model"] = config.d_model;
  json["n_layers"] = config.n_layers;
  json["d_ff"] = config.d_ff;
  json["activation"] = "gelu_tanh";
  json["norm"] = "layer_norm";
  json["norm_eps"] = ShortestDouble(config.norm_eps);
  json["tie_embeddings"] = config.tie_embeddings;
  if (config.max_seq_len != 0) json["max_seq_len"] = config.max_seq_len;
  json["mixer"] = std::move(mixer);
  json["tokenizer"]["kind"] = config.tokenizer;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

const char* MixerKindName(MixerKind kind) {
  switch (kind) {
    case MixerKind::kAftSimple:
      return "aft_simple";
    case MixerKind::kAftLocal:
      return "aft_local";
  }
  return "unknown";
}

int64_t CountParameters(const NetworkConfig& config) {
  const int64_t d = config.d_model;
  const int64_t linear_qkv = 3 * d * d + 3 * d;
  const int64_t linear_out = d * d + d;
  const int64_t band = std::max<int64_t>(config.mixer.band_rows, 1) * config.mixer.window;
  const int64_t ffn = 2 * d * config.d_ff + config.d_ff + d;
  const int64_t norm = 2 * d;
  const int64_t embed = config.vocab_size * d;
  const int64_t head = config.tie_embeddings ? 0 : config.vocab_size * d + config.vocab_size;
  return embed + config.n_layers * (linear_qkv + linear_out + band + ffn + 2 * norm) + norm + head;
}

}  // namespace aft
