#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/json_fields.h"
#include "model/convert/hub.h"
#include "model/convert/import.h"
#include "model/convert/source.h"
#include "model/tokenizer/vocabulary_file.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using Json = nlohmann::json;

// Reads everything except the mixer and the tokenizer.
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
  AFT_RETURN_IF_ERROR(ReadActivation(json, "activation_function", &config.activation));
  const auto inner = json.find("n_inner");
  config.d_ff = 4 * config.d_model;
  if (inner != json.end() && !inner->is_null()) {
    AFT_RETURN_IF_ERROR(ReadSize(json, "n_inner", &config.d_ff));
  }
  AFT_RETURN_IF_ERROR(ReadNorm(json, "layer_norm_epsilon", &config.norm_eps));
  config.position = PositionKind::kLearned;
  config.max_seq_len = config.position_rows;
  config.tokenizer = "bpe";  // UseHubTokenizer changes this if there is none
  config.head_bias = false;
  config.tie_embeddings = true;
  AFT_RETURN_IF_ERROR(ReadFlag(json, "tie_word_embeddings", &config.tie_embeddings));
  return config;
}

// GPT-2's linear layers are Conv1D modules, whose weights are [in, out].
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
  DeferredTensors* tensors = &import->tensors;
  Source source(files);
  const std::string prefix = source.HasPrefix("transformer.") ? "transformer." : "";
  // The head has no prefix in any version. Files may have it in addition to the embedding that it
  // is tied to.
  const std::string head = "lm_head.weight";
  const bool tied = config.tie_embeddings;
  DeferredTensor weight;
  if (!tied || source.Has(head)) {
    AFT_ASSIGN_OR_RETURN(weight, source.Take(head, {config.vocab_size, config.d_model}));
    source.Became(head, tied ? "(embed.weight: tied)" : "head.weight");
  }
  if (!tied) (*tensors)["head.weight"] = weight;
  AFT_RETURN_IF_ERROR(TakeNetwork(source, config, prefix, kLayers, tensors));
  if (tied && source.Has(head)) {
    AFT_ASSIGN_OR_RETURN(const at::Tensor left, weight.make());
    AFT_ASSIGN_OR_RETURN(const at::Tensor right, tensors->at("embed.weight").make());
    if (!left.to(at::kFloat).equal(right.to(at::kFloat))) {
      return source.Error(head, "differs from the embedding, to which tie_word_embeddings ties it");
    }
  }
  for (int64_t i = 0; i < config.n_layers; ++i) {
    const std::string attention = absl::StrCat(prefix, "h.", i, ".attn.");
    source.Ignore(attention + "bias", "(the causal mask)");
    source.Ignore(attention + "masked_bias", "(what masked scores become)");
  }
  return source.Finish(import);
}

}  // namespace

absl::StatusOr<Import> ImportGpt2(const std::string& dir, const AttentionOptions& options,
                                  const std::vector<std::string>& keys) {
  const std::string config_path = absl::StrCat(dir, "/", kConfigFileName);
  AFT_ASSIGN_OR_RETURN(const Json json, ReadHubJson(config_path));
  Import import;
  import.read.push_back(config_path);
  int64_t heads = 0;
  AFT_ASSIGN_OR_RETURN(import.config, InFile(config_path, ReadConfig(json, &heads)));
  import.config.mixer = HubAttention(options, heads);
  // The config is checked before anything of the size that it asks for is read.
  AFT_RETURN_IF_ERROR(
      InFile(config_path, ParseNetworkConfig(FormatNetworkConfig(import.config)).status()));
  import.metadata["imported_from"] = "gpt2";
  AFT_ASSIGN_OR_RETURN(const WeightFiles weights, WeightFiles::OpenFolder(dir, keys));
  AFT_RETURN_IF_ERROR(InFile(weights.path(), CopyTensors(weights, &import)));
  AFT_RETURN_IF_ERROR(UseHubTokenizer(dir, dir, json, &import));
  return import;
}

}  // namespace aft
