#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/json_fields.h"
#include "model/convert/import.h"
#include "model/convert/source.h"
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

absl::Status CopyTensors(const TensorMap& all, const NetworkConfig& config, TensorMap* tensors) {
  Source source(all);
  const std::string prefix = source.HasPrefix("transformer.") ? "transformer." : "";
  // It has no prefix in any version. Files may hold it beside the embedding that it is tied to.
  const std::string head = "lm_head.weight";
  const bool tied = config.tie_embeddings;
  at::Tensor weight;
  if (!tied || source.Has(head)) {
    AFT_ASSIGN_OR_RETURN(weight, source.Take(head, {config.vocab_size, config.d_model}));
  }
  if (!tied) (*tensors)["head.weight"] = weight;
  AFT_RETURN_IF_ERROR(TakeNetwork(source, config, prefix, kLayers, tensors));
  if (tied && weight.defined() && !weight.equal(tensors->at("embed.weight"))) {
    return TensorError(head, "differs from the embedding, to which tie_word_embeddings ties it");
  }
  for (int64_t i = 0; i < config.n_layers; ++i) {
    // Buffers: the causal mask, and what masked scores become.
    for (const char* buffer : {"bias", "masked_bias"}) {
      source.Ignore(absl::StrCat(prefix, "h.", i, ".attn.", buffer));
    }
  }
  return source.Finish();
}

// vocab.json and merges.txt of `dir`. Without both: bytes.
absl::Status UseBpe(const std::string& dir, Import* import) {
  const std::string vocab = absl::StrCat(dir, "/", kVocabFileName);
  const std::string merges = absl::StrCat(dir, "/", kMergesFileName);
  std::error_code error;
  if (!std::filesystem::exists(vocab, error) && !std::filesystem::exists(merges, error)) {
    return UseBytes(absl::StrCat("needs ", vocab, " and ", merges), import);
  }
  AFT_RETURN_IF_ERROR(LoadTokenizer("bpe", dir, import->config.vocab_size).status());
  AFT_ASSIGN_OR_RETURN(import->files[kVocabFileName], ReadVocabularyText(vocab));
  AFT_ASSIGN_OR_RETURN(import->files[kMergesFileName], ReadVocabularyText(merges));
  import->config.tokenizer = "bpe";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Import> ImportGpt2(const std::string& dir, const Gpt2Options& options) {
  const std::string config_path = absl::StrCat(dir, "/", kConfigFileName);
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadVocabularyText(config_path));
  AFT_ASSIGN_OR_RETURN(const Json json, InFile(config_path, ParseStrictJson(text)));
  Import import;
  int64_t heads = 0;
  AFT_ASSIGN_OR_RETURN(import.config, InFile(config_path, ReadConfig(json, &heads)));
  import.config.mixer = Attention(options, heads);
  import.metadata["imported_from"] = "gpt2";
  const std::string weights_path = absl::StrCat(dir, "/", kWeightsFileName);
  AFT_ASSIGN_OR_RETURN(const SafetensorsFile weights, ReadSafetensors(weights_path));
  AFT_RETURN_IF_ERROR(
      InFile(weights_path, CopyTensors(weights.tensors, import.config, &import.tensors)));
  AFT_RETURN_IF_ERROR(UseBpe(dir, &import));
  return import;
}

}  // namespace aft
