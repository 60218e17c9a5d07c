#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/json_fields.h"
#include "model/config/tensors.h"
#include "model/convert/hub.h"
#include "model/convert/import.h"
#include "model/convert/source.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/vocabulary_file.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using Json = nlohmann::json;

// All code below uses the names of BlinkDL's files. The other packages have other names in their
// places.
enum class RwkvNames { kBlink, kTransformers, kFla };

Source::Names RwkvNamesOf(RwkvNames form) {
  if (form == RwkvNames::kBlink) return {};
  if (form == RwkvNames::kTransformers) {
    return {{"emb.", "rwkv.embeddings."},
            {"blocks.", "rwkv.blocks."},
            {"ln_out.", "rwkv.ln_out."},
            {".ln0.", ".pre_ln."},
            {".att.", ".attention."},
            {".ffn.", ".feed_forward."},
            {"time_mix_k", "time_mix_key"},
            {"time_mix_v", "time_mix_value"},
            {"time_mix_r", "time_mix_receptance"}};
  }
  Source::Names names = {{"emb.", "model.embeddings."},
                         {"blocks.", "model.layers."},
                         {"ln_out.", "model.norm."},
                         {"head.", "lm_head."},
                         {".ln0.", ".pre_norm."},
                         {".ln1.", ".attn_norm."},
                         {".ln2.", ".ffn_norm."},
                         {".att.", ".attn."},
                         {".att.receptance.", ".attn.r_proj."},
                         {".att.key.", ".attn.k_proj."},
                         {".att.value.", ".attn.v_proj."},
                         {".att.output.", ".attn.o_proj."},
                         {".att.ln_x.", ".attn.g_norm."}};
  for (const char* part : {"w", "a", "v", "g"}) {
    const std::string theirs = absl::StrCat(".attn.", part, "_lora.lora.");
    names.emplace_back(absl::StrCat(".att.", part, "0"), theirs + "2.bias");
    names.emplace_back(absl::StrCat(".att.", part, "1"), theirs + "0.weight");
    names.emplace_back(absl::StrCat(".att.", part, "2"), theirs + "2.weight");
  }
  return names;
}

// Tensors of both versions. A network of one version does not ask for those of the other one.
constexpr Renamed kRwkvLayers[] = {{"embed", "emb"},
                                   {"embed_norm", "blocks.0.ln0"},
                                   {"norm1", "blocks.$0.ln1"},
                                   {"mixer.r", "blocks.$0.att.receptance"},
                                   {"mixer.k", "blocks.$0.att.key"},
                                   {"mixer.v", "blocks.$0.att.value"},
                                   {"mixer.decay", "blocks.$0.att.time_decay", false, true},
                                   {"mixer.w.down.weight", "blocks.$0.att.w1", true},
                                   {"mixer.w.up.weight", "blocks.$0.att.w2", true},
                                   {"mixer.w.up.bias", "blocks.$0.att.w0", false, true},
                                   {"mixer.a.down.weight", "blocks.$0.att.a1", true},
                                   {"mixer.a.up.weight", "blocks.$0.att.a2", true},
                                   {"mixer.a.up.bias", "blocks.$0.att.a0", false, true},
                                   {"mixer.v_gate.down.weight", "blocks.$0.att.v1", true},
                                   {"mixer.v_gate.up.weight", "blocks.$0.att.v2", true},
                                   {"mixer.v_gate.up.bias", "blocks.$0.att.v0", false, true},
                                   {"mixer.g.down.weight", "blocks.$0.att.g1", true},
                                   {"mixer.g.up.weight", "blocks.$0.att.g2", true},
                                   {"mixer.key_scale", "blocks.$0.att.k_k", false, true},
                                   {"mixer.key_rate", "blocks.$0.att.k_a", false, true},
                                   {"mixer.group_norm", "blocks.$0.att.ln_x"},
                                   {"mixer.out", "blocks.$0.att.output"},
                                   {"norm2", "blocks.$0.ln2"},
                                   {"ffn.up", "blocks.$0.ffn.key"},
                                   {"ffn.gate", "blocks.$0.ffn.receptance"},
                                   {"ffn.down", "blocks.$0.ffn.value"},
                                   {"norm", "ln_out"},
                                   {"head", "head"}};
constexpr Renamed kRwkv4Layers[] = {
    {"mixer.shift", "blocks.$0.att.time_mix_r blocks.$0.att.time_mix_k blocks.$0.att.time_mix_v",
     false, true},
    {"mixer.bonus", "blocks.$0.att.time_first", false, true},
    {"ffn.shift", "blocks.$0.ffn.time_mix_k blocks.$0.ffn.time_mix_r", false, true}};
constexpr Renamed kRwkv7Layers[] = {
    {"mixer.shift",
     "blocks.$0.att.x_r blocks.$0.att.x_w blocks.$0.att.x_k blocks.$0.att.x_v blocks.$0.att.x_a "
     "blocks.$0.att.x_g",
     false, true},
    {"mixer.bonus", "blocks.$0.att.r_k", false, true},
    {"ffn.shift", "blocks.$0.ffn.x_k", false, true}};
// The first files of flash-linear-attention have the six shares in one tensor, in our order.
constexpr Renamed kOneShift = {"mixer.shift", "blocks.$0.att.x_x"};

// Finds the version by names that only it has. OK for 4 and 7.
absl::StatusOr<MixerKind> FindVersion(const Source& source, const WeightFiles& files) {
  for (const auto& [name, entry] : files.entries()) {
    if (!absl::StrContains(name, ".ffn.s_emb")) continue;
    return Source(files).Error(name, "belongs to DeepEmbed, which is not supported");
  }
  const std::string attention = "blocks.0.att.";
  if (source.Has(attention + "k_k")) return MixerKind::kWkv7;
  for (const char* name : {"time_maa_x", "time_maa_k"}) {
    if (!source.Has(attention + name)) continue;
    return source.Error(attention + name, "belongs to RWKV-6; only versions 4 and 7 are supported");
  }
  if (source.Has(attention + "ln_x.weight")) {
    return source.Error(attention + "ln_x.weight",
                        "belongs to RWKV-5; only versions 4 and 7 are supported");
  }
  if (source.Has(attention + "time_first")) return MixerKind::kWkv4;
  return source.Error(attention + "k_k", "is missing, and so is time_first of RWKV-4");
}

// flash-linear-attention has the low-rank matrices as linear layers, [out, in].
bool IsLowRankTransposed(RwkvNames form) { return form != RwkvNames::kFla; }

absl::Status ReadRwkvSizes(const Source& source, RwkvNames form, NetworkConfig* config) {
  AFT_ASSIGN_OR_RETURN(const std::vector<int64_t> embedding,
                       source.Shape("emb.weight", {Source::kAny, Source::kAny}));
  config->vocab_size = embedding[0];
  config->d_model = embedding[1];
  AFT_ASSIGN_OR_RETURN(const std::vector<int64_t> up,
                       source.Shape("blocks.0.ffn.key.weight", {Source::kAny, config->d_model}));
  config->d_ff = up[0];
  while (source.HasPrefix(absl::StrCat("blocks.", config->n_layers, "."))) ++config->n_layers;
  if (config->mixer.kind == MixerKind::kWkv4) return absl::OkStatus();

  AFT_ASSIGN_OR_RETURN(const std::vector<int64_t> heads,
                       source.Shape("blocks.0.att.r_k", {Source::kAny, Source::kAny}));
  config->mixer.heads = heads[0];
  // BlinkDL's norm of a head adds 64e-5 at any width, flash-linear-attention's and ours 1e-5 for
  // each channel.
  if (form == RwkvNames::kBlink && heads[1] != 64) {
    return source.Error("blocks.0.att.r_k",
                        absl::StrCat("has heads of ", heads[1], " channels, must have 64"));
  }
  // A network of one layer has no value gate, and may have any rank of it.
  const bool has_values = source.Has("blocks.1.att.v1");
  const std::pair<std::string, int64_t*> ranks[] = {
      {"blocks.0.att.w1", &config->mixer.decay_rank},
      {"blocks.0.att.a1", &config->mixer.rate_rank},
      {has_values ? "blocks.1.att.v1" : "blocks.0.att.a1", &config->mixer.value_rank},
      {"blocks.0.att.g1", &config->mixer.gate_rank}};
  const bool transposed = IsLowRankTransposed(form);
  for (const auto& [name, rank] : ranks) {
    std::vector<int64_t> shape = {Source::kAny, config->d_model};
    if (transposed) absl::c_reverse(shape);
    AFT_ASSIGN_OR_RETURN(shape, source.Shape(name, shape));
    *rank = shape[transposed ? 1 : 0];
  }
  return absl::OkStatus();
}

// Makes all tables fp32. Our shares are those of the token before; RWKV-4 has those of the token
// itself.
void ConvertTables(const NetworkConfig& config, DeferredTensors* tensors) {
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    if (spec.role != TensorRole::kTable) continue;
    const bool complement =
        config.mixer.kind == MixerKind::kWkv4 && absl::EndsWith(spec.name, ".shift");
    DeferredTensor& tensor = tensors->at(spec.name);
    tensor = {at::kFloat, spec.shape,
              [make = std::move(tensor.make), complement]() -> absl::StatusOr<at::Tensor> {
                AFT_ASSIGN_OR_RETURN(const at::Tensor made, make());
                const at::Tensor table = made.to(at::kFloat);
                return complement ? 1 - table : table;
              }};
  }
}

std::string TimeState(int64_t layer) { return absl::StrCat("blocks.", layer, ".att.time_state"); }

// Takes the states before a text. Those of RWKV-7 are [heads, values, keys], as RWKV-PEFT trains
// them and RWKV-Runner reads them; ours are [heads, keys, values].
absl::Status TakeStates(Source& source, Import* import) {
  const NetworkConfig& config = import->config;
  const int64_t width = config.d_model / config.mixer.heads;
  for (int64_t i = 0; i < config.n_layers; ++i) {
    AFT_ASSIGN_OR_RETURN(DeferredTensor state,
                         source.Take(TimeState(i), {config.mixer.heads, width, width}));
    const std::string ours = InitialStateName(i);
    source.Became(TimeState(i), ours);
    const auto turned = [make = std::move(state.make)]() -> absl::StatusOr<at::Tensor> {
      AFT_ASSIGN_OR_RETURN(const at::Tensor made, make());
      return made.transpose(1, 2).contiguous();
    };
    import->tensors[ours] = {state.type, state.shape, turned};
  }
  return absl::OkStatus();
}

absl::Status TakeRwkv(const WeightFiles& files, Import* import) {
  RwkvNames form = RwkvNames::kBlink;
  if (Source(files).HasPrefix("rwkv.blocks.")) form = RwkvNames::kTransformers;
  if (Source(files).HasPrefix("model.layers.")) form = RwkvNames::kFla;
  Source source(files, RwkvNamesOf(form));
  NetworkConfig& config = import->config;
  AFT_ASSIGN_OR_RETURN(config.mixer.kind, FindVersion(source, files));
  const bool is_7 = config.mixer.kind == MixerKind::kWkv7;
  AFT_RETURN_IF_ERROR(ReadRwkvSizes(source, form, &config));
  config.feed_forward = is_7 ? FeedForwardKind::kChannelMix : FeedForwardKind::kGatedChannelMix;
  config.activation = Activation::kSquaredRelu;
  config.embedding_norm = true;
  config.qkv_bias = config.head_bias = false;
  config.tokenizer = "bpe";  // UseRwkvTokenizer changes this
  config.mixer.initial_state = is_7 && source.Has(TimeState(0));
  if (config.mixer.initial_state) AFT_RETURN_IF_ERROR(TakeStates(source, import));
  AFT_RETURN_IF_ERROR(ParseNetworkConfig(FormatNetworkConfig(config)).status());

  std::vector<Renamed> layers(std::begin(kRwkvLayers), std::end(kRwkvLayers));
  for (Renamed& layer : layers) {
    layer.transposed = layer.transposed && IsLowRankTransposed(form);
  }
  const absl::Span<const Renamed> own =
      is_7 ? absl::MakeConstSpan(kRwkv7Layers) : absl::MakeConstSpan(kRwkv4Layers);
  if (is_7 && source.Has("blocks.0.att.x_x")) layers.push_back(kOneShift);
  layers.insert(layers.end(), own.begin(), own.end());
  AFT_RETURN_IF_ERROR(TakeNetwork(source, config, "", layers, &import->tensors));
  ConvertTables(config, &import->tensors);
  for (const char* name : {"v0", "v1", "v2"}) {
    source.Ignore(absl::StrCat("blocks.0.att.", name), "(the first layer mixes no values)");
  }
  import->metadata["imported_from"] = is_7 ? "rwkv-7" : "rwkv-4";
  return source.Finish(import);
}

// Checks what config.json says about the network. The tensors say all sizes.
absl::Status CheckRwkvConfig(const Json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("must be an object");
  std::string type;
  AFT_RETURN_IF_ERROR(ReadString(json, "model_type", &type));
  if (type != "rwkv" && type != "rwkv7") {
    return KeyError("model_type", absl::StrCat("must be rwkv or rwkv7, got ", ShownToken(type)));
  }
  AFT_RETURN_IF_ERROR(CheckFlag(json, "tie_word_embeddings", false));
  AFT_RETURN_IF_ERROR(CheckFlag(json, "norm_first", true));
  if (json.value("hidden_act", Json("sqrelu")) != Json("sqrelu")) {
    return KeyError("hidden_act", "must be sqrelu");
  }
  const char* const epsilon = type == "rwkv" ? "layer_norm_epsilon" : "norm_eps";
  float value = 1e-5F;
  if (json.contains(epsilon)) AFT_RETURN_IF_ERROR(ReadNorm(json, epsilon, &value));
  // The last norm of transformers and the group norm of our RWKV-7 have no other one.
  return value == 1e-5F ? absl::OkStatus() : KeyError(epsilon, "must be 1e-5");
}

// Takes the tokenizer that was asked for or, without one, that of the folder or of the vocabulary.
absl::Status UseRwkvTokenizer(const std::string& asked, const std::string& hub_dir,
                              const Json& hub_config, Import* import) {
  constexpr int64_t kWorldSize = 65536;
  const int64_t size = import->config.vocab_size;
  std::string tokenizer = asked;
  if (tokenizer.empty()) {
    const std::string own = absl::StrCat(hub_dir, "/", kTokenizerFileName);
    std::error_code ignored;
    const bool has_own = !hub_dir.empty() && std::filesystem::exists(own, ignored);
    tokenizer = !has_own && size == kWorldSize ? "world"
                : !has_own && size == 256      ? "bytes"
                                               : hub_dir;
  }
  if (tokenizer == "bytes") return UseBytes("bytes are 256", import);
  if (tokenizer == "world") {
    import->config.tokenizer = "world";
    import->files[kWorldFileName] = std::string(ShippedWorldVocabulary());
    return absl::OkStatus();
  }
  if (tokenizer.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary has ", size,
                     " tokens: --tokenizer must name a folder that has its ", kTokenizerFileName));
  }
  return UseHubTokenizer(tokenizer, hub_dir, hub_config, import);
}

}  // namespace

absl::StatusOr<Import> ImportRwkv(const std::string& path, const RwkvOptions& options) {
  Import import;
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(path, ignored);
  WeightFiles files{TensorMap()};
  Json json = Json::object();
  if (folder) {
    const std::string config_path = absl::StrCat(path, "/", kConfigFileName);
    AFT_ASSIGN_OR_RETURN(json, ReadHubJson(config_path));
    import.read.push_back(config_path);
    AFT_RETURN_IF_ERROR(InFile(config_path, CheckRwkvConfig(json)));
    AFT_ASSIGN_OR_RETURN(files, WeightFiles::OpenFolder(path, options.keys));
  } else {
    AFT_ASSIGN_OR_RETURN(files, WeightFiles::OpenFile(path, options.keys));
  }
  AFT_RETURN_IF_ERROR(InFile(files.path(), TakeRwkv(files, &import)));
  AFT_RETURN_IF_ERROR(
      InFile(path, UseRwkvTokenizer(options.tokenizer, folder ? path : "", json, &import)));
  return import;
}

absl::StatusOr<std::string> AddRwkvState(const std::string& path,
                                         const std::vector<std::string>& keys,
                                         const std::string& dir, const std::string& name) {
  AFT_ASSIGN_OR_RETURN(CheckpointFile checkpoint, OpenCheckpoint(dir));
  AFT_RETURN_IF_ERROR(CheckTakesStates(checkpoint.config, dir));
  if (!IsStateName(name)) {
    return absl::InvalidArgumentError(
        "the name of a state must have 1 to 64 letters, digits, dots, hyphens and underscores");
  }
  const std::string target = (std::filesystem::path(dir) / StateFileName(name)).string();
  std::error_code ignored;
  if (std::filesystem::exists(target, ignored)) {
    return absl::AlreadyExistsError(absl::StrCat(target, ": exists"));
  }
  AFT_ASSIGN_OR_RETURN(WeightFiles files, WeightFiles::OpenFile(path, keys));
  Source source(std::move(files));
  Import import;
  import.config = std::move(checkpoint.config);
  AFT_RETURN_IF_ERROR(InFile(path, TakeStates(source, &import)));
  AFT_RETURN_IF_ERROR(InFile(path, source.Finish(&import)));
  AFT_RETURN_IF_ERROR(StreamSafetensors(target, import.tensors));
  return target;
}

}  // namespace aft
