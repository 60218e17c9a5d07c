#include "model/convert/hub.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/in_file.h"
#include "base/json_walk.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/json_fields.h"
#include "model/convert/source.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {
namespace {

using Json = nlohmann::json;

struct ActivationName {
  const char* name;
  Activation activation;
};
constexpr ActivationName kActivations[] = {{"gelu_new", Activation::kGeluTanh},
                                           {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                           {"gelu", Activation::kGelu},
                                           {"relu", Activation::kRelu}};

// The member of an object, or null. A value that is not an object has no members.
Json Member(const Json& value, const std::string& key) {
  const auto found = value.find(key);
  return found == value.end() ? Json() : *found;
}

// Adds the id of a token that stands around each text. Returns false if the vocabulary has none
// with this id.
bool AddFrameId(const Json& id, int64_t vocab_size, std::vector<int32_t>* ids) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
    return false;
  }
  ids->push_back(id.get<int32_t>());
  return true;
}

// Moves the tokens that an encoder's tokenizer.json puts around each text into the config. It knows
// RobertaProcessing and a template of tokens before and after the text. It leaves other processors
// to the tokenizer, which refuses them.
absl::Status MoveFrame(std::string* text, NetworkConfig* config) {
  AFT_ASSIGN_OR_RETURN(Json json, ParseStrictJson(*text, text->size()));
  if (!json.is_object() || !json.contains("post_processor")) return absl::OkStatus();
  const Json processor = json["post_processor"];
  if (!processor.is_object()) return absl::OkStatus();
  const Json type = processor.value("type", Json());
  if (type == "RobertaProcessing") {
    for (const auto& [key, ids] :
         {std::pair("cls", &config->text_prefix), std::pair("sep", &config->text_suffix)}) {
      const Json pair = Member(processor, key);  // [text, id]
      if (pair.is_array() && pair.size() == 2 && AddFrameId(pair[1], config->vocab_size, ids)) {
        continue;
      }
      return KeyError(
          absl::StrCat("post_processor.", key),
          absl::StrCat("must be a token and its id, which is below ", config->vocab_size));
    }
  } else if (type == "TemplateProcessing") {
    const Json single = processor.value("single", Json());
    const Json known = processor.value("special_tokens", Json::object());
    if (!single.is_array() || !known.is_object()) return absl::OkStatus();
    std::vector<int32_t>* ids = &config->text_prefix;
    for (const Json& piece : single) {
      if (!piece.is_object()) return absl::OkStatus();
      if (piece.contains("Sequence")) {
        ids = &config->text_suffix;
        continue;
      }
      const Json name = Member(Member(piece, "SpecialToken"), "id");
      const Json list =
          Member(Member(known, name.is_string() ? name.get<std::string>() : ""), "ids");
      if (!list.is_array() || list.size() != 1 || !AddFrameId(list[0], config->vocab_size, ids)) {
        return KeyError("post_processor.special_tokens",
                        absl::StrCat("each must have one id, below ", config->vocab_size));
      }
    }
  } else {
    return absl::OkStatus();
  }
  json["post_processor"] = nullptr;
  *text = json.dump();
  return absl::OkStatus();
}

// In a folder without tokenizer.json only the config names the tokens around each text.
absl::Status UseFrameOfConfig(const Json& json, NetworkConfig* config) {
  for (const auto& [key, ids] : {std::pair("bos_token_id", &config->text_prefix),
                                 std::pair("eos_token_id", &config->text_suffix)}) {
    if (AddFrameId(Member(json, key), config->vocab_size, ids)) continue;
    return KeyError(key,
                    absl::StrCat("must be the id of the token before or after each text, below ",
                                 config->vocab_size));
  }
  return absl::OkStatus();
}

// Reads 1_Pooling/config.json. Exactly one of its pooling modes must be true.
absl::Status ReadPooling(const Json& json, NetworkConfig* config) {
  int forms = 0;
  for (const auto& [key, value] : json.items()) {
    if (!absl::StartsWith(key, "pooling_mode_") || value != Json(true)) continue;
    if (key == "pooling_mode_mean_tokens") {
      config->pooling = Pooling::kMean;
    } else if (key == "pooling_mode_cls_token") {
      config->pooling = Pooling::kFirst;
    } else if (key == "pooling_mode_lasttoken") {
      config->pooling = Pooling::kLast;
    } else {
      return KeyError(
          key, "must be false: a vector must be the mean, or that of the first or the last token");
    }
    ++forms;
  }
  if (forms == 1) return absl::OkStatus();
  return KeyError("pooling_mode_*", "one of mean_tokens, cls_token and lasttoken must be true");
}

// Reads what the module Transformer does to a text before the network reads it.
absl::Status ReadTransformer(const Json& json, bool has_tokenizer, NetworkConfig* config) {
  if (has_tokenizer && !Member(json, "do_lower_case").is_null()) {
    AFT_RETURN_IF_ERROR(CheckFlag(json, "do_lower_case", false));
  }
  if (Member(json, "max_seq_length").is_null()) return absl::OkStatus();
  int64_t longest = 0;
  AFT_RETURN_IF_ERROR(ReadSize(json, "max_seq_length", &longest));
  config->max_seq_len = std::min(config->max_seq_len, longest);
  return absl::OkStatus();
}

// The content of the token with this id in the text of a tokenizer.json, if there is such a token.
std::optional<std::string> TokenWithId(const std::string& text, uint64_t id) {
  std::optional<std::string> found;
  Json added_id, content;  // of the added token that is being read
  const auto take = [&](const JsonPath& path, const Json& value) {
    if (path.size() == 3 && path[0] == "added_tokens") {
      if (path[2] == "id") added_id = value;
      if (path[2] == "content") content = value;
      if (added_id == Json(id) && content.is_string()) found = content.get<std::string>();
    } else if (path.size() == 2 && path[0] == "added_tokens") {
      added_id = content = nullptr;
    } else if (path.size() == 3 && path[0] == "model" && path[1] == "vocab" && value == Json(id)) {
      found = path[2];
    }
    return absl::OkStatus();
  };
  return WalkJson(text, take).ok() ? found : std::nullopt;
}

// Makes a tokenizer_config.json that names the end of text, of which config.json has the id. It
// keeps the folder's own file when the vocabulary has no such token: the id in config.json is then
// GPT-2's default, which does not depend on the vocabulary.
absl::Status NameEndOfText(const Json& config, Import* import) {
  Json id = config.value("eos_token_id", Json());
  if (id.is_array() && id.size() == 1) id = Json(id[0]);
  if (id.is_null()) return absl::OkStatus();
  if (!id.is_number_unsigned()) {
    return KeyError("eos_token_id", absl::StrCat("must be one token's id, got ", ShownJson(id)));
  }
  const std::optional<std::string> token =
      TokenWithId(import->files.at(kTokenizerFileName), id.get<uint64_t>());
  if (token.has_value()) {
    import->files[kTokenizerConfigFileName] = Json{{ "eos_token", *token }}.dump() + "\n";
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> ReadHubJson(const std::string& path) {
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadVocabularyText(path));
  return InFile(path, ParseStrictJson(text));
}

absl::Status UseSentenceModules(const std::string& dir, bool has_tokenizer, NetworkConfig* config) {
  const std::string modules_path = absl::StrCat(dir, "/modules.json");
  std::error_code error;
  if (!std::filesystem::exists(modules_path, error)) return absl::OkStatus();
  AFT_ASSIGN_OR_RETURN(const Json modules, ReadHubJson(modules_path));
  for (const Json& module : modules) {
    std::string type, folder;
    AFT_RETURN_IF_ERROR(InFile(modules_path, ReadString(module, "type", &type)));
    AFT_RETURN_IF_ERROR(InFile(modules_path, ReadString(module, "path", &folder)));
    const std::string module_dir = folder.empty() ? dir : absl::StrCat(dir, "/", folder);
    const absl::string_view name = absl::StripPrefix(type, "sentence_transformers.models.");
    if (name == "Normalize") {
      config->normalize = true;
    } else if (name == "Pooling") {
      const std::string path = absl::StrCat(module_dir, "/", kConfigFileName);
      AFT_ASSIGN_OR_RETURN(const Json json, ReadHubJson(path));
      AFT_RETURN_IF_ERROR(InFile(path, ReadPooling(json, config)));
    } else if (name == "Transformer") {
      // The package reads the first of these files. Its older versions write the second.
      for (const char* file : {"sentence_bert_config.json", "sentence_roberta_config.json"}) {
        const std::string path = absl::StrCat(module_dir, "/", file);
        if (!std::filesystem::exists(path, error)) continue;
        AFT_ASSIGN_OR_RETURN(const Json json, ReadHubJson(path));
        AFT_RETURN_IF_ERROR(InFile(path, ReadTransformer(json, has_tokenizer, config)));
        break;
      }
    } else {
      return InFile(modules_path,
                    KeyError("type", absl::StrCat("must be Transformer, Pooling or Normalize, got ",
                                                  ShownToken(type))));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadSize(const Json& json, const char* key, int64_t* out) {
  const auto value = json.find(key);
  if (value == json.end()) return KeyError(key, "missing");
  if (!value->is_number_unsigned() || value->get<uint64_t>() == 0 ||
      value->get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()}) {
    return KeyError(
        key, absl::StrCat("must be an integer from 1 to ", std::numeric_limits<int32_t>::max(),
                          ", got ", ShownJson(*value)));
  }
  *out = value->get<int64_t>();
  return absl::OkStatus();
}

absl::Status ReadFlag(const Json& json, const char* key, bool* out) {
  const auto value = json.find(key);
  if (value == json.end()) return absl::OkStatus();
  if (!value->is_boolean()) return KeyError(key, "must be true or false");
  *out = value->get<bool>();
  return absl::OkStatus();
}

absl::Status CheckFlag(const Json& json, const char* key, bool supported) {
  bool value = supported;
  AFT_RETURN_IF_ERROR(ReadFlag(json, key, &value));
  if (value == supported) return absl::OkStatus();
  return KeyError(key, absl::StrCat("only ", supported ? "true" : "false", " is supported"));
}

absl::Status ReadString(const Json& json, const char* key, std::string* out) {
  const auto value = json.find(key);
  if (value == json.end()) return KeyError(key, "missing");
  if (!value->is_string()) return KeyError(key, "must be a string");
  *out = value->get<std::string>();
  return absl::OkStatus();
}

absl::Status ReadNorm(const Json& json, const char* key, float* out) {
  const auto epsilon = json.find(key);
  if (epsilon == json.end() || !epsilon->is_number()) return KeyError(key, "must be a number");
  *out = epsilon->get<float>();
  return absl::OkStatus();
}

absl::Status ReadActivation(const Json& json, const char* key, Activation* out) {
  std::string name;
  AFT_RETURN_IF_ERROR(ReadString(json, key, &name));
  for (const ActivationName& known : kActivations) {
    if (name != known.name) continue;
    *out = known.activation;
    return absl::OkStatus();
  }
  return KeyError(key, absl::StrCat("must be gelu_new, gelu_pytorch_tanh, gelu or relu, got ",
                                    ShownToken(name)));
}

MixerConfig HubAttention(const AttentionOptions& options, int64_t heads) {
  MixerConfig mixer;
  mixer.heads = heads;
  mixer.kind = options.block_local ? MixerKind::kBlockLocal : MixerKind::kDotProduct;
  if (options.block_local) {
    mixer.block_size = options.block_size;
    mixer.global_token = options.global_token;
    mixer.full_decode = options.full_decode;
  }
  return mixer;
}

absl::Status UseHubTokenizer(const std::string& dir, const Json& config, Import* import) {
  const auto has = [&dir](const char* name) {
    std::error_code error;
    return std::filesystem::exists(absl::StrCat(dir, "/", name), error);
  };
  if (!has(kTokenizerFileName) && !has(kVocabFileName) && !has(kMergesFileName)) {
    return UseBytes(absl::StrCat("needs ", dir, "/", kTokenizerFileName, ", or ", kVocabFileName,
                                 " and ", kMergesFileName),
                    import);
  }
  const bool encoder = import->config.architecture == Architecture::kEncoder;
  import->config.tokenizer = "bpe";
  if (!encoder) {
    AFT_RETURN_IF_ERROR(LoadTokenizer("bpe", dir, import->config.vocab_size).status());
  }
  std::vector<const char*> names = {kVocabFileName, kMergesFileName};
  if (has(kTokenizerFileName)) names = {kTokenizerFileName, kTokenizerConfigFileName};
  for (const char* name : names) {
    if (!has(name)) continue;  // tokenizer_config.json, which need not be there
    import->read.push_back(absl::StrCat(dir, "/", name));
    AFT_ASSIGN_OR_RETURN(import->files[name], ReadVocabularyText(import->read.back()));
  }
  const std::string config_path = absl::StrCat(dir, "/", kConfigFileName);
  if (!has(kTokenizerFileName)) {
    return encoder ? InFile(config_path, UseFrameOfConfig(config, &import->config))
                   : absl::OkStatus();
  }
  if (encoder) {
    AFT_RETURN_IF_ERROR(InFile(absl::StrCat(dir, "/", kTokenizerFileName),
                               MoveFrame(&import->files[kTokenizerFileName], &import->config)));
  }
  return InFile(config_path, NameEndOfText(config, import));
}

}  // namespace aft
