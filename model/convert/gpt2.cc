#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/json_fields.h"
#include "model/convert/import.h"
#include "model/convert/source.h"
#include "model/tokenizer/json_walk.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/vocabulary_file.h"
#include "nlohmann/json.hpp"

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

// Their config.json has many keys that do not matter here, and more with every version: what is
// read is checked, the rest is left alone.
absl::Status ReadSize(const Json& json, const char* key, int64_t* out) {
  const auto value = json.find(key);
  if (value == json.end()) return KeyError(key, "missing");
  if (!value->is_number_unsigned() || value->get<uint64_t>() == 0 ||
      value->get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()}) {
    return KeyError(key, absl::StrCat("must be a positive size, got ", value->type_name()));
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

// A flag that changes what the network computes in a way that is not supported.
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

absl::Status ReadActivation(const Json& json, Activation* out) {
  std::string name;
  AFT_RETURN_IF_ERROR(ReadString(json, "activation_function", &name));
  for (const ActivationName& known : kActivations) {
    if (name != known.name) continue;
    *out = known.activation;
    return absl::OkStatus();
  }
  return KeyError(
      "activation_function",
      absl::StrCat("must be gelu_new, gelu_pytorch_tanh, gelu or relu, got ", ShownToken(name)));
}

// Everything but the mixer and the tokenizer.
absl::StatusOr<NetworkConfig> ReadConfig(const Json& json, int64_t* heads) {
  if (!json.is_object()) return absl::InvalidArgumentError("must be an object");
  std::string model_type;
  AFT_RETURN_IF_ERROR(ReadString(json, "model_type", &model_type));
  if (model_type != "gpt2") {
    return KeyError("model_type", absl::StrCat("must be gpt2, got ", ShownToken(model_type)));
  }
  AFT_RETURN_IF_ERROR(CheckFlag(json, "scale_attn_weights", true));
  AFT_RETURN_IF_ERROR(CheckFlag(json, "scale_attn_by_inverse_layer_idx", false));
  AFT_RETURN_IF_ERROR(CheckFlag(json, "add_cross_attention", false));

  NetworkConfig config;
  AFT_RETURN_IF_ERROR(ReadSize(json, "vocab_size", &config.vocab_size));
  AFT_RETURN_IF_ERROR(ReadSize(json, "n_embd", &config.d_model));
  AFT_RETURN_IF_ERROR(ReadSize(json, "n_layer", &config.n_layers));
  AFT_RETURN_IF_ERROR(ReadSize(json, "n_head", heads));
  AFT_RETURN_IF_ERROR(ReadSize(json, "n_positions", &config.position_rows));
  AFT_RETURN_IF_ERROR(ReadActivation(json, &config.activation));
  const auto inner = json.find("n_inner");
  config.d_ff = 4 * config.d_model;
  if (inner != json.end() && !inner->is_null()) {
    AFT_RETURN_IF_ERROR(ReadSize(json, "n_inner", &config.d_ff));
  }
  const auto epsilon = json.find("layer_norm_epsilon");
  if (epsilon == json.end() || !epsilon->is_number()) {
    return KeyError("layer_norm_epsilon", "must be a number");
  }
  config.norm_eps = epsilon->get<float>();
  config.position = PositionKind::kLearned;
  config.max_seq_len = config.position_rows;
  config.tokenizer = "bpe";  // unless it has none
  config.head_bias = false;
  config.tie_embeddings = true;
  AFT_RETURN_IF_ERROR(ReadFlag(json, "tie_word_embeddings", &config.tie_embeddings));
  return config;
}

MixerConfig Attention(const Gpt2Options& options, int64_t heads) {
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

// Its linear layers are Conv1Ds, whose weights are [in, out].
constexpr Renamed kLayers[] = {{"embed", "wte"},
                               {"position", "wpe"},
                               {"norm1", "h.$0.ln_1"},
                               {"mixer.qkv", "h.$0.attn.c_attn", true},
                               {"mixer.out", "h.$0.attn.c_proj", true},
                               {"norm2", "h.$0.ln_2"},
                               {"ffn.up", "h.$0.mlp.c_fc", true},
                               {"ffn.down", "h.$0.mlp.c_proj", true},
                               {"norm", "ln_f"}};

absl::Status CopyTensors(const WeightFiles& files, Import* import) {
  const NetworkConfig& config = import->config;
  TensorMap* tensors = &import->tensors;
  Source source(files);
  const std::string prefix = source.HasPrefix("transformer.") ? "transformer." : "";
  // It has no prefix in any version. Files may hold it beside the embedding that it is tied to.
  const std::string head = "lm_head.weight";
  const bool tied = config.tie_embeddings;
  at::Tensor weight;
  if (!tied || source.Has(head)) {
    AFT_ASSIGN_OR_RETURN(weight, source.Take(head, {config.vocab_size, config.d_model}));
    source.Became(head, tied ? "(embed.weight: tied)" : "head.weight");
  }
  if (!tied) (*tensors)["head.weight"] = weight;
  AFT_RETURN_IF_ERROR(TakeNetwork(source, config, prefix, kLayers, tensors));
  if (tied && weight.defined() &&
      !weight.to(at::kFloat).equal(tensors->at("embed.weight").to(at::kFloat))) {
    return source.Error(head, "differs from the embedding, to which tie_word_embeddings ties it");
  }
  for (int64_t i = 0; i < config.n_layers; ++i) {
    const std::string attention = absl::StrCat(prefix, "h.", i, ".attn.");
    source.Ignore(attention + "bias", "(the causal mask)");
    source.Ignore(attention + "masked_bias", "(what masked scores become)");
  }
  return source.Finish(import);
}

// The content of the token with this id in the text of a tokenizer.json, if it has one.
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

// tokenizer_config.json that names the end of text, which the config knows by its id. Left as the
// folder has it where the config has no such token: its default is GPT-2's own, in any vocabulary.
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

// Takes the tokenizer's files that `dir` has, and says in the config what they make.
absl::Status UseTokenizer(const std::string& dir, const Json& config, Import* import) {
  const auto has = [&dir](const char* name) {
    std::error_code error;
    return std::filesystem::exists(absl::StrCat(dir, "/", name), error);
  };
  if (!has(kTokenizerFileName) && !has(kVocabFileName) && !has(kMergesFileName)) {
    return UseBytes(absl::StrCat("needs ", dir, "/", kTokenizerFileName, ", or ", kVocabFileName,
                                 " and ", kMergesFileName),
                    import);
  }
  AFT_RETURN_IF_ERROR(LoadTokenizer("bpe", dir, import->config.vocab_size).status());
  std::vector<const char*> names = {kVocabFileName, kMergesFileName};
  if (has(kTokenizerFileName)) names = {kTokenizerFileName, kTokenizerConfigFileName};
  for (const char* name : names) {
    if (!has(name)) continue;  // tokenizer_config.json, which need not be there
    import->read.push_back(absl::StrCat(dir, "/", name));
    AFT_ASSIGN_OR_RETURN(import->files[name], ReadVocabularyText(import->read.back()));
  }
  if (!has(kTokenizerFileName)) return absl::OkStatus();
  return InFile(absl::StrCat(dir, "/", kConfigFileName), NameEndOfText(config, import));
}

}  // namespace

absl::StatusOr<Import> ImportGpt2(const std::string& dir, const Gpt2Options& options) {
  const std::string config_path = absl::StrCat(dir, "/", kConfigFileName);
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadVocabularyText(config_path));
  AFT_ASSIGN_OR_RETURN(const Json json, InFile(config_path, ParseStrictJson(text)));
  Import import;
  import.read.push_back(config_path);
  int64_t heads = 0;
  AFT_ASSIGN_OR_RETURN(import.config, InFile(config_path, ReadConfig(json, &heads)));
  import.config.mixer = Attention(options, heads);
  // Before anything is as large as the config says.
  AFT_RETURN_IF_ERROR(
      InFile(config_path, ParseNetworkConfig(FormatNetworkConfig(import.config)).status()));
  import.metadata["imported_from"] = "gpt2";
  AFT_ASSIGN_OR_RETURN(const WeightFiles weights, WeightFiles::OpenFolder(dir));
  AFT_RETURN_IF_ERROR(InFile(weights.path(), CopyTensors(weights, &import)));
  AFT_RETURN_IF_ERROR(UseTokenizer(dir, json, &import));
  return import;
}

}  // namespace aft
