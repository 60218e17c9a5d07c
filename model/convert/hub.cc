#include "model/convert/hub.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/json.h"
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
                                           {"gelu_fast", Activation::kGeluTanh},
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
  // The parsed values take many times the memory of the text. Files of RoBERTa have at most 4 MB.
  constexpr size_t kMaxBytes = size_t{16} << 20;
  AFT_ASSIGN_OR_RETURN(Json json, ParseStrictJson(*text, kMaxBytes));
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
  *text = DumpJson(json);
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

// Reads 1_Pooling/config.json. It must have one pooling mode: versions from 5.4 on name it, older
// ones have a flag for each.
absl::Status ReadPooling(const Json& json, NetworkConfig* config) {
  Json mode = Member(json, "pooling_mode");
  if (mode.is_array() && mode.size() == 1) mode = Json(mode[0]);
  if (!mode.is_null()) {
    for (const auto& [name, pooling] : {std::pair("mean", Pooling::kMean),
                                        {"cls", Pooling::kFirst},
                                        {"lasttoken", Pooling::kLast}}) {
      if (mode != Json(name)) continue;
      config->pooling = pooling;
      return absl::OkStatus();
    }
    return KeyError("pooling_mode",
                    absl::StrCat("must be mean, cls or lasttoken, got ", ShownJson(mode)));
  }
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

// Reads the config of the module Transformer. *longest becomes its max_seq_length, if it has one.
absl::Status ReadTransformer(const Json& json, bool has_tokenizer, int64_t* longest) {
  if (has_tokenizer && !Member(json, "do_lower_case").is_null()) {
    AFT_RETURN_IF_ERROR(CheckFlag(json, "do_lower_case", false));
  }
  for (const char* key : {"query_length", "document_length", "query_expansion"}) {
    if (!Member(json, key).is_null()) return KeyError(key, "must be null");
  }
  if (Member(json, "max_seq_length").is_null()) return absl::OkStatus();
  return ReadSize(json, "max_seq_length", longest);
}

// Reads what the module Transformer does to a text before the network reads it.
absl::Status UseTransformer(const std::string& dir, bool has_tokenizer, NetworkConfig* config) {
  std::error_code error;
  int64_t longest = 0;
  // The package reads the first of these files. Its older versions write the second.
  for (const char* file : {"sentence_bert_config.json", "sentence_roberta_config.json"}) {
    const std::string path = absl::StrCat(dir, "/", file);
    if (!std::filesystem::exists(path, error)) continue;
    AFT_ASSIGN_OR_RETURN(const Json json, ReadHubJson(path));
    AFT_RETURN_IF_ERROR(InFile(path, ReadTransformer(json, has_tokenizer, &longest)));
    break;
  }
  const std::string path = absl::StrCat(dir, "/", kTokenizerConfigFileName);
  if (longest == 0 && std::filesystem::exists(path, error)) {
    AFT_ASSIGN_OR_RETURN(const Json json, ReadHubJson(path));
    const Json length = Member(json, "model_max_length");
    // A tokenizer without a limit has 1e30 here, which is above all integers.
    if (length.is_number_unsigned()) {
      longest = static_cast<int64_t>(
          std::min<uint64_t>(length.get<uint64_t>(), std::numeric_limits<int32_t>::max()));
    }
  }
  if (longest > 0) config->max_seq_len = std::min(config->max_seq_len, longest);
  return absl::OkStatus();
}

// Refuses a prompt that the package puts before every text.
absl::Status RefuseDefaultPrompt(const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/config_sentence_transformers.json");
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  AFT_ASSIGN_OR_RETURN(const Json json, ReadHubJson(path));
  const Json name = Member(json, "default_prompt_name");
  if (!name.is_string()) return absl::OkStatus();
  const Json prompt = Member(Member(json, "prompts"), name.get<std::string>());
  if (prompt.is_null() || prompt == Json("")) return absl::OkStatus();
  return InFile(path, KeyError("default_prompt_name",
                               absl::StrCat("names the prompt ", ShownJson(prompt),
                                            ", which the package puts before every text: set it "
                                            "to null, and let the clients write the prompt")));
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

// The token with an id of a config of the model: nothing if the vocabulary has no such token.
absl::StatusOr<std::optional<std::string>> TokenOfConfig(const Json& id, const std::string& dir,
                                                         const std::string* tokenizer_json) {
  if (!id.is_number_unsigned()) {
    return KeyError("eos_token_id", absl::StrCat("must be one token's id, got ", ShownJson(id)));
  }
  if (tokenizer_json != nullptr) return TokenWithId(*tokenizer_json, id.get<uint64_t>());
  AFT_ASSIGN_OR_RETURN(const std::vector<std::string> tokens,
                       ReadTokenIds(absl::StrCat(dir, "/", kVocabFileName)));
  if (id.get<uint64_t>() >= tokens.size()) return std::nullopt;
  return tokens[id.get<size_t>()];
}

// The eos_token_id of a config, or null. A list of one id is that id.
Json EndOfTextId(const Json& config) {
  Json id = Member(config, "eos_token_id");
  return id.is_array() && id.size() == 1 ? Json(id[0]) : id;
}

// The token that ends a text by the ids in the configs of the folder `model_dir`, of which `config`
// is config.json. Nothing if the vocabulary has neither token: configs keep GPT-2's default, 50256,
// whatever their vocabulary is.
absl::StatusOr<std::optional<EndOfText>> EndOfTextOfConfigs(const std::string& model_dir,
                                                            const Json& config,
                                                            const std::string& dir,
                                                            const std::string* tokenizer_json) {
  const std::string config_path = absl::StrCat(model_dir, "/", kConfigFileName);
  const std::string generation_path = absl::StrCat(model_dir, "/generation_config.json");
  const Json id = EndOfTextId(config);
  Json preferred;  // by the package's generate(), which reads config.json only without this file
  std::error_code error;
  if (!model_dir.empty() && std::filesystem::exists(generation_path, error)) {
    AFT_ASSIGN_OR_RETURN(const Json generation, ReadHubJson(generation_path));
    preferred = EndOfTextId(generation);
    // The package's Trainer puts the new token of the texts before the old ones, and only the new
    // one into config.json.
    if (preferred.is_array() && absl::c_linear_search(preferred, id)) preferred = nullptr;
  }
  for (const auto& [one, path] :
       {std::pair(preferred, generation_path), std::pair(id, config_path)}) {
    if (one.is_null()) continue;
    AFT_ASSIGN_OR_RETURN(const std::optional<std::string> token,
                         InFile(path, TokenOfConfig(one, dir, tokenizer_json)));
    if (token.has_value()) return EndOfText{*token, absl::StrCat(path, ": eos_token_id")};
  }
  return std::nullopt;
}

// Refuses what a folder without tokenizer.json says about the tokens of a text in other files than
// vocab.json and merges.txt.
absl::Status CheckVocabularyFolder(const std::string& dir) {
  std::error_code error;
  const std::string added_path = absl::StrCat(dir, "/added_tokens.json");
  if (std::filesystem::exists(added_path, error)) {
    AFT_ASSIGN_OR_RETURN(const Json added, ReadHubJson(added_path));
    AFT_ASSIGN_OR_RETURN(const std::vector<std::string> tokens,
                         ReadTokenIds(absl::StrCat(dir, "/", kVocabFileName)));
    for (const auto& [token, id] : added.items()) {
      if (id.is_number_unsigned() && id.get<uint64_t>() < tokens.size() &&
          tokens[id.get<size_t>()] == token) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat(added_path, ": token ", ShownToken(token), " is not in ", kVocabFileName,
                       ": save the tokenizer as ", kTokenizerFileName,
                       " (AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR))"));
    }
  }
  const std::string config_path = absl::StrCat(dir, "/", kTokenizerConfigFileName);
  if (!std::filesystem::exists(config_path, error)) return absl::OkStatus();
  AFT_ASSIGN_OR_RETURN(const Json config, ReadHubJson(config_path));
  for (const char* key : {"add_prefix_space", "add_bos_token"}) {
    if (Member(config, key) != Json(true)) continue;
    return InFile(config_path, KeyError(key, "only false is supported"));
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
  if (has_tokenizer) AFT_RETURN_IF_ERROR(RefuseDefaultPrompt(dir));
  AFT_ASSIGN_OR_RETURN(const Json modules, ReadHubJson(modules_path));
  for (const Json& module : modules) {
    std::string type, folder;
    AFT_RETURN_IF_ERROR(InFile(modules_path, ReadString(module, "type", &type)));
    AFT_RETURN_IF_ERROR(InFile(modules_path, ReadString(module, "path", &folder)));
    const std::string module_dir = folder.empty() ? dir : absl::StrCat(dir, "/", folder);
    // Versions from 5.4 on have more folders between the package and the class.
    const bool known = absl::StartsWith(type, "sentence_transformers.");
    const std::string name = known ? type.substr(type.rfind('.') + 1) : type;
    if (name == "Normalize") {
      const std::string path = absl::StrCat(module_dir, "/", kConfigFileName);
      // Without a folder of its own the module has no config: that of `dir` is the network's.
      if (!folder.empty() && std::filesystem::exists(path, error)) {
        AFT_ASSIGN_OR_RETURN(const Json json, ReadHubJson(path));
        const Json input = Member(json, "module_input_name");
        if (!input.is_null() && input != Json("sentence_embedding")) {
          return InFile(path, KeyError("module_input_name", "must be sentence_embedding"));
        }
      }
      config->normalize = true;
    } else if (name == "Pooling") {
      const std::string path = absl::StrCat(module_dir, "/", kConfigFileName);
      AFT_ASSIGN_OR_RETURN(const Json json, ReadHubJson(path));
      AFT_RETURN_IF_ERROR(InFile(path, ReadPooling(json, config)));
    } else if (name == "Transformer") {
      AFT_RETURN_IF_ERROR(UseTransformer(module_dir, has_tokenizer, config));
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
  return KeyError(key,
                  absl::StrCat("must be gelu_new, gelu_fast, gelu_pytorch_tanh, gelu or relu, got ",
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

absl::Status UseHubTokenizer(const std::string& dir, const std::string& model_dir,
                             const Json& config, Import* import) {
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
  const bool one_file = has(kTokenizerFileName);
  if (!one_file) AFT_RETURN_IF_ERROR(CheckVocabularyFolder(dir));
  import->config.tokenizer = "bpe";
  std::vector<const char*> names = {kVocabFileName, kMergesFileName, kTokenizerConfigFileName};
  if (one_file) names = {kTokenizerFileName, kTokenizerConfigFileName};
  for (const char* name : names) {
    if (!has(name)) continue;  // LoadBpeTokenizer needs all but tokenizer_config.json
    import->read.push_back(absl::StrCat(dir, "/", name));
    AFT_ASSIGN_OR_RETURN(import->files[name], ReadVocabularyText(import->read.back()));
  }
  const std::string path = absl::StrCat(dir, "/", kTokenizerFileName);
  std::string* const json = one_file ? &import->files[kTokenizerFileName] : nullptr;
  AFT_ASSIGN_OR_RETURN(std::optional<EndOfText> eos,
                       ReadEndOfText(absl::StrCat(dir, "/", kTokenizerConfigFileName)));
  if (encoder) {  // whose texts do not end with a token of their own
    AFT_RETURN_IF_ERROR(one_file ? InFile(path, MoveFrame(json, &import->config))
                                 : InFile(absl::StrCat(model_dir, "/", kConfigFileName),
                                          UseFrameOfConfig(config, &import->config)));
  } else {
    AFT_ASSIGN_OR_RETURN(const std::optional<EndOfText> named,
                         EndOfTextOfConfigs(model_dir, config, dir, json));
    if (named.has_value()) {
      eos = named;
      import->files[kTokenizerConfigFileName] = DumpJson(Json{{ "eos_token", eos->token }}) + "\n";
    }
  }
  // Checked before the weights are written, and by the names that the user knows.
  AFT_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer,
                       one_file ? MakeJsonTokenizer(*json, path, eos)
                                : LoadBpeTokenizer(absl::StrCat(dir, "/", kVocabFileName),
                                                   absl::StrCat(dir, "/", kMergesFileName), eos));
  return CheckVocabulary(*tokenizer, "bpe", dir, import->config.vocab_size);
}

}  // namespace aft
