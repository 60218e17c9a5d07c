#include <string>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/json.h"
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

struct BertConfig {
  NetworkConfig network = {};
  int64_t heads = 0;
  int64_t token_types = 0;
  bool roberta = false;
  int64_t first_position = 0;  // the row of the position table that the first token has
};

// lsg_converter writes these keys into the configs of checkpoints that it has converted.
absl::Status RefuseLsg(const Json& json) {
  for (const char* key : {"sparse_block_size", "sparsity_type", "num_global_tokens"}) {
    if (json.contains(key)) {
      return KeyError(
          key,
          "a checkpoint that lsg_converter has converted: its attention has sparse and "
          "global tokens in addition to the blocks, which are not supported; import the original "
          "with --attention block_local");
    }
  }
  return absl::OkStatus();
}

// Reads everything except the mixer and the tokenizer.
absl::StatusOr<BertConfig> ReadConfig(const Json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("must be an object");
  AFT_RETURN_IF_ERROR(RefuseLsg(json));
  std::string model_type;
  AFT_RETURN_IF_ERROR(ReadString(json, "model_type", &model_type));
  if (model_type != "roberta" && model_type != "bert") {
    return KeyError("model_type",
                    absl::StrCat("must be roberta or bert, got ", ShownToken(model_type)));
  }
  AFT_RETURN_IF_ERROR(CheckFlag(json, "is_decoder", false));
  AFT_RETURN_IF_ERROR(CheckFlag(json, "add_cross_attention", false));
  if (const std::string kind = DumpJson(json.value("position_embedding_type", Json("absolute")));
      kind != "\"absolute\"") {
    return KeyError("position_embedding_type", absl::StrCat("must be \"absolute\", got ", kind));
  }

  BertConfig config{.roberta = model_type == "roberta"};
  NetworkConfig& network = config.network;
  network.architecture = Architecture::kEncoder;
  int64_t rows = 0;
  AFT_RETURN_IF_ERROR(ReadSize(json, "vocab_size", &network.vocab_size));
  AFT_RETURN_IF_ERROR(ReadSize(json, "hidden_size", &network.d_model));
  AFT_RETURN_IF_ERROR(ReadSize(json, "num_hidden_layers", &network.n_layers));
  AFT_RETURN_IF_ERROR(ReadSize(json, "num_attention_heads", &config.heads));
  AFT_RETURN_IF_ERROR(ReadSize(json, "intermediate_size", &network.d_ff));
  AFT_RETURN_IF_ERROR(ReadSize(json, "max_position_embeddings", &rows));
  AFT_RETURN_IF_ERROR(ReadSize(json, "type_vocab_size", &config.token_types));
  AFT_RETURN_IF_ERROR(ReadActivation(json, "hidden_act", &network.activation));
  AFT_RETURN_IF_ERROR(ReadNorm(json, "layer_norm_eps", &network.norm_eps));
  if (config.roberta) {
    // RoBERTa counts positions from the padding's id + 1.
    const auto padding = json.find("pad_token_id");
    if (padding == json.end() || !padding->is_number_unsigned() ||
        padding->get<uint64_t>() >= static_cast<uint64_t>(rows - 1)) {
      return KeyError("pad_token_id", "must be an id below max_position_embeddings - 1");
    }
    config.first_position = padding->get<int64_t>() + 1;
  }
  network.position = PositionKind::kLearned;
  network.position_rows = network.max_seq_len = rows - config.first_position;
  network.post_norm = true;
  network.embedding_norm = true;
  return config;
}

constexpr Renamed kBertLayers[] = {
    {"embed", "embeddings.word_embeddings"},
    {"embed_norm", "embeddings.LayerNorm"},
    {"mixer.qkv",
     "encoder.layer.$0.attention.self.query encoder.layer.$0.attention.self.key "
     "encoder.layer.$0.attention.self.value"},
    {"mixer.out", "encoder.layer.$0.attention.output.dense"},
    {"norm1", "encoder.layer.$0.attention.output.LayerNorm"},
    {"ffn.up", "encoder.layer.$0.intermediate.dense"},
    {"ffn.down", "encoder.layer.$0.output.dense"},
    {"norm2", "encoder.layer.$0.output.LayerNorm"}};

// Every token has type 0, so the row of type 0 is added to the row of each position.
absl::Status UsePositions(Source& source, const std::string& prefix, const BertConfig& config,
                          DeferredTensors* tensors) {
  const std::string positions = prefix + "embeddings.position_embeddings.weight";
  const std::string types = prefix + "embeddings.token_type_embeddings.weight";
  const int64_t d = config.network.d_model;
  const int64_t rows = config.network.position_rows;
  AFT_ASSIGN_OR_RETURN(const at::Tensor table,
                       source.Read(positions, {config.first_position + rows, d}));
  AFT_ASSIGN_OR_RETURN(const at::Tensor type, source.Read(types, {config.token_types, d}));
  (*tensors)["position.weight"] =
      (table.narrow(0, config.first_position, rows).to(at::kFloat) + type[0].to(at::kFloat))
          .contiguous();
  source.Became(positions, "position.weight");
  source.Became(types, "position.weight (type 0, which all tokens have)");
  return absl::OkStatus();
}

absl::Status CopyTensors(const WeightFiles& files, const BertConfig& config, Import* import) {
  const std::string name = config.roberta ? "roberta." : "bert.";
  // The first checkpoints of BERT name the tensors of their norms gamma and beta.
  const std::string gamma = "embeddings.LayerNorm.gamma";
  Source::Names names;
  if (files.entries().count(name + gamma) > 0 || files.entries().count(gamma) > 0) {
    names = {{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}};
  }
  Source source(files, std::move(names));
  const std::string prefix = source.HasPrefix(name) ? name : "";
  AFT_RETURN_IF_ERROR(UsePositions(source, prefix, config, &import->tensors));
  AFT_RETURN_IF_ERROR(TakeNetwork(source, import->config, prefix, kBertLayers, &import->tensors));
  source.Ignore(prefix + "embeddings.position_ids", "(the positions' numbers)");
  source.Ignore(prefix + "embeddings.token_type_ids", "(type 0)");
  for (const auto& [tensor, entry] : files.entries()) {
    if (absl::StartsWith(tensor, prefix + "pooler.")) {
      source.Ignore(tensor, "(the pooler: Encode takes the first token's vector or the mean)");
    } else if (absl::StartsWith(tensor, "lm_head.") || absl::StartsWith(tensor, "cls.")) {
      source.Ignore(tensor, "(the head of masked tokens)");
    }
  }
  return source.Finish(import);
}

}  // namespace

absl::StatusOr<Import> ImportBert(const std::string& dir, const AttentionOptions& options,
                                  const std::vector<std::string>& keys) {
  const std::string config_path = absl::StrCat(dir, "/", kConfigFileName);
  AFT_ASSIGN_OR_RETURN(const Json json, ReadHubJson(config_path));
  AFT_ASSIGN_OR_RETURN(const BertConfig config, InFile(config_path, ReadConfig(json)));
  Import import;
  import.read.push_back(config_path);
  import.config = config.network;
  import.config.mixer = HubAttention(options, config.heads);
  import.config.mixer.causal = false;
  import.config.tokenizer.clear();
  AFT_RETURN_IF_ERROR(UseSentenceModules(dir, config.roberta, &import.config));
  // The config is checked before anything of the size that it asks for is read.
  AFT_RETURN_IF_ERROR(
      InFile(config_path, ParseNetworkConfig(FormatNetworkConfig(import.config)).status()));
  import.metadata["imported_from"] = config.roberta ? "roberta" : "bert";
  AFT_ASSIGN_OR_RETURN(const WeightFiles weights, WeightFiles::OpenFolder(dir, keys));
  AFT_RETURN_IF_ERROR(InFile(weights.path(), CopyTensors(weights, config, &import)));
  // BERT's WordPiece is not supported: such a model takes only ids.
  if (config.roberta) {
    AFT_RETURN_IF_ERROR(UseHubTokenizer(dir, dir, json, &import));
    AFT_RETURN_IF_ERROR(ParseNetworkConfig(FormatNetworkConfig(import.config)).status());
  }
  return import;
}

}  // namespace aft
