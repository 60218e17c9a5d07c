#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/ops/ones.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/convert/import.h"
#include "model/convert/source.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {
namespace {

constexpr char kPositions[] = "src_embed.positional_encodings";

constexpr Renamed kModelLayers[] = {
    {"embed", "src_embed.linear"},
    {"norm1", "encoder.layers.$0.norm_self_attn"},
    {"mixer.qkv",
     "encoder.layers.$0.self_attn.query encoder.layers.$0.self_attn.key "
     "encoder.layers.$0.self_attn.value"},
    {"mixer.out", "encoder.layers.$0.self_attn.output"},
    {"norm2", "encoder.layers.$0.norm_ff"},
    {"ffn.up", "encoder.layers.$0.feed_forward.layer1"},
    {"ffn.down", "encoder.layers.$0.feed_forward.layer2"},
    {"norm", "encoder.norm"},
    {"head", "generator.projection"}};

// The window of the band in the local_mask below `prefix` or, without local_mask, the given one. A
// window above `rows` covers the whole table, as a window of `rows` does.
absl::StatusOr<int64_t> Window(Source& source, const std::string& prefix, int64_t rows,
                               std::optional<int64_t> given) {
  const std::string name = prefix + "local_mask";
  if (!source.Has(name)) {
    if (given.has_value()) return std::min(*given, rows);
    return source.Error(name, "is missing: the window must be given (--window)");
  }
  AFT_ASSIGN_OR_RETURN(const at::Tensor mask, source.ReadMask(name, {rows, rows}));
  const auto window = mask.select(0, 0).sum().item<int64_t>();
  const at::Tensor band = at::ones({rows, rows}, at::kFloat).tril(window - 1).triu(1 - window);
  if (!mask.equal(band.to(at::kBool))) {
    return source.Error(name,
                        absl::StrCat("is not a band as wide as its first row says, ", window));
  }
  if (given.has_value() && std::min(*given, rows) != window) {
    return source.Error(name,
                        absl::StrCat("has a window of ", window, ", but --window is ", *given));
  }
  source.Became(name, absl::StrCat("(window ", window, ")"));
  return window;
}

// Takes the position bias below `prefix`, and sets the fields of AFT-local in the config. `first`:
// this is the first layer, whose sizes all other layers must have.
absl::Status TakeAftLocal(Source& source, const std::string& prefix, const std::string& layer,
                          std::optional<int64_t> given, bool first, Import* import) {
  NetworkConfig& config = import->config;
  const int64_t rows = first ? Source::kAny : config.max_seq_len;
  AFT_ASSIGN_OR_RETURN(const at::Tensor bias, source.Read(prefix + "pos_bias", {rows, rows}));
  AFT_ASSIGN_OR_RETURN(const int64_t window, Window(source, prefix, bias.size(0), given));
  if (source.Has(prefix + "query.bias") != config.qkv_bias) {
    return source.Error(prefix + "query.bias", "must be there in all layers or in none");
  }
  if (!first && window != config.mixer.window) {
    return source.Error(
        prefix + "local_mask",
        absl::StrCat("has a window of ", window, ", but layer 0's is ", config.mixer.window));
  }
  return UseBias(source, prefix + "pos_bias", bias, window, layer, &config, &import->tensors);
}

// Whether `positions` [T, d] is labml's sinusoidal table, within the error of fp32 angles.
bool AreWaves(const at::Tensor& positions) {
  const auto d = static_cast<double>(positions.size(1));
  for (int64_t t = 0; t < positions.size(0); ++t) {
    const float* row = positions.const_data_ptr<float>() + t * positions.size(1);
    const double tolerance = 1e-6 * static_cast<double>(t + 1);
    for (int64_t c = 0; c < positions.size(1); ++c) {
      const double angle =
          static_cast<double>(t) * std::pow(10000.0, -static_cast<double>(c - c % 2) / d);
      const double wave = c % 2 == 0 ? std::sin(angle) : std::cos(angle);
      if (std::abs(row[c] - wave) > tolerance) return false;
    }
  }
  return true;
}

// Takes the positions. The table is longer than the model's texts; rows beyond T are not kept.
absl::Status UsePositions(Source& source, Import* import) {
  NetworkConfig& config = import->config;
  AFT_ASSIGN_OR_RETURN(const at::Tensor table,
                       source.Read(kPositions, {Source::kAny, 1, config.d_model}));
  if (table.size(0) < config.max_seq_len) {
    return source.Error(kPositions, absl::StrCat("has ", table.size(0), " rows, but pos_bias has ",
                                                 config.max_seq_len));
  }
  const at::Tensor rows = table.select(1, 0).narrow(0, 0, config.max_seq_len).contiguous();
  if (AreWaves(rows.to(at::kFloat))) {
    config.position = PositionKind::kSinusoidal;
    source.Became(kPositions, "(sinusoidal positions)");
    return absl::OkStatus();
  }
  config.position = PositionKind::kLearned;
  config.position_rows = config.max_seq_len;
  import->tensors["position.weight"] = rows;
  source.Became(kPositions, "position.weight");
  return absl::OkStatus();
}

// Takes the characters from a JSON list, one for each token. Without a path it uses bytes.
absl::Status UseCharacters(const std::string& chars_path, Import* import) {
  if (chars_path.empty()) {
    return UseBytes("its characters must be given (--chars), or be the 256 bytes", import);
  }
  AFT_ASSIGN_OR_RETURN(std::vector<std::string> characters, ReadTokenList(chars_path));
  AFT_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer,
                       InFile(chars_path, MakeCharTokenizer(std::move(characters))));
  if (tokenizer->vocab_size() != import->config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(chars_path, ": has ", tokenizer->vocab_size(),
                                                   " characters, but the embedding has ",
                                                   import->config.vocab_size, " rows"));
  }
  AFT_ASSIGN_OR_RETURN(import->files[kCharsFileName], ReadVocabularyText(chars_path));
  import->config.tokenizer = "chars";
  return absl::OkStatus();
}

absl::StatusOr<Import> ImportModule(Source& source, const LabmlOptions& options) {
  constexpr Renamed kMixerNames[] = {{"mixer.qkv", "query key value"}, {"mixer.out", "output"}};
  Import import;
  AFT_ASSIGN_OR_RETURN(import.config, MixerModuleConfig(source, "query"));
  import.config.mixer.causal = !options.bidirectional;
  AFT_RETURN_IF_ERROR(TakeAftLocal(source, "", "layers.0.", options.window, true, &import));
  AFT_RETURN_IF_ERROR(TakeNetwork(source, import.config, "", kMixerNames, &import.tensors));
  return import;
}

absl::StatusOr<Import> ImportModel(Source& source, const LabmlOptions& options) {
  Import import;
  NetworkConfig& config = import.config;
  if (source.Has("src_embed.weight")) {
    return source.Error("src_embed.weight",
                        "belongs to the embedding without positions (src_embed = 'no_pos'), which "
                        "is not supported");
  }
  AFT_ASSIGN_OR_RETURN(const std::vector<int64_t> embedding,
                       source.Shape("src_embed.linear.weight", {Source::kAny, Source::kAny}));
  config.vocab_size = embedding[0];
  config.d_model = embedding[1];
  const std::string first = "encoder.layers.0.";
  AFT_ASSIGN_OR_RETURN(
      const std::vector<int64_t> query,
      source.Shape(first + "self_attn.query.weight", {Source::kAny, config.d_model}));
  AFT_ASSIGN_OR_RETURN(
      const std::vector<int64_t> up,
      source.Shape(first + "feed_forward.layer1.weight", {Source::kAny, config.d_model}));
  config.mixer.hidden = query[0] == config.d_model ? 0 : query[0];
  config.qkv_bias = source.Has(first + "self_attn.query.bias");
  config.d_ff = up[0];
  config.embedding_scale = std::sqrt(static_cast<float>(config.d_model));
  config.activation = options.activation;
  for (int64_t i = 0; i == 0 || source.HasPrefix(absl::StrCat("encoder.layers.", i, ".")); ++i) {
    AFT_RETURN_IF_ERROR(TakeAftLocal(source, absl::StrCat("encoder.layers.", i, ".self_attn."),
                                     absl::StrCat("layers.", i, "."), options.window, i == 0,
                                     &import));
    config.n_layers = i + 1;
  }
  AFT_RETURN_IF_ERROR(UsePositions(source, &import));
  AFT_RETURN_IF_ERROR(TakeNetwork(source, config, "", kModelLayers, &import.tensors));
  AFT_RETURN_IF_ERROR(UseCharacters(options.chars_path, &import));
  return import;
}

}  // namespace

absl::StatusOr<Import> ImportLabml(WeightFiles files, const LabmlOptions& options) {
  Source source(std::move(files));
  const bool model = source.HasPrefix("src_embed.") || source.HasPrefix("encoder.");
  if (!model && !options.chars_path.empty()) {
    return absl::InvalidArgumentError("--chars is for language models: a module has no characters");
  }
  if (model && options.bidirectional) {
    return absl::InvalidArgumentError("a language model is causal: --bidirectional is for modules");
  }
  AFT_ASSIGN_OR_RETURN(Import import,
                       model ? ImportModel(source, options) : ImportModule(source, options));
  AFT_RETURN_IF_ERROR(source.Finish(&import));
  import.metadata["imported_from"] = "labml-nn";
  return import;
}

}  // namespace aft
