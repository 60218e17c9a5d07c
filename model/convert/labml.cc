#include "model/convert/labml.h"

#include <cmath>
#include <utility>

#include "ATen/ops/ones.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/convert/aft_module.h"
#include "model/convert/source.h"
#include "model/convert/tokenizer_files.h"

namespace aft {
namespace {

constexpr char kEmbedding[] = "src_embed.linear.weight";
constexpr char kPositions[] = "src_embed.positional_encodings";

// The window that local_mask below `prefix` is the band of; else the option's.
absl::StatusOr<int64_t> Window(Source& source, const std::string& prefix, int64_t rows,
                               std::optional<int64_t> given) {
  const std::string name = prefix + "local_mask";
  if (!source.Has(name)) {
    if (given.has_value()) return *given;
    return TensorError(name, "is missing: the window must be given (--window)");
  }
  AFT_ASSIGN_OR_RETURN(const at::Tensor mask, source.TakeMask(name, {rows, rows}));
  const auto window = mask.select(0, 0).sum().item<int64_t>();
  const at::Tensor band = at::ones({rows, rows}, at::kFloat).tril(window - 1).triu(1 - window);
  if (!mask.equal(band.to(at::kBool))) {
    return TensorError(name, absl::StrCat("is not a band as wide as its first row says, ", window));
  }
  if (given.has_value() && *given != window) {
    return TensorError(name,
                       absl::StrCat("has a window of ", window, ", but --window is ", *given));
  }
  return window;
}

struct AftLocal {
  Projections projections;
  at::Tensor bias;  // [T, T]
  int64_t window = 0;
};

// `first`: the layer whose sizes this one must have, or null.
absl::StatusOr<AftLocal> TakeAftLocal(Source& source, const std::string& prefix,
                                      const std::string& layer, std::optional<int64_t> window,
                                      const AftLocal* first, ProjectionSizes sizes,
                                      TensorMap* tensors) {
  AftLocal local;
  if (first != nullptr) sizes.hid = first->projections.hid;
  AFT_ASSIGN_OR_RETURN(
      local.projections,
      TakeProjections(source, prefix, {"query", "key", "value", "output"}, layer, tensors, sizes));
  const int64_t rows = first == nullptr ? Source::kAny : first->bias.size(0);
  AFT_ASSIGN_OR_RETURN(local.bias, source.Take(prefix + "pos_bias", {rows, rows}));
  AFT_ASSIGN_OR_RETURN(local.window, Window(source, prefix, local.bias.size(0), window));
  if (first == nullptr) return local;
  if (local.projections.qkv_bias != first->projections.qkv_bias) {
    return TensorError(prefix + "query.bias", "must be there in all layers or in none");
  }
  if (local.window != first->window) {
    return TensorError(prefix + "local_mask", absl::StrCat("has a window of ", local.window,
                                                           ", but layer 0's is ", first->window));
  }
  return local;
}

// Whether `positions` [T, d] is labml's table of waves, within what fp32 angles lose.
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

// The table is longer than the model's texts: rows beyond T are not kept.
absl::Status UsePositions(Source& source, Import* import) {
  NetworkConfig& config = import->config;
  AFT_ASSIGN_OR_RETURN(const at::Tensor table,
                       source.Take(kPositions, {Source::kAny, 1, config.d_model}));
  if (table.size(0) < config.max_seq_len) {
    return TensorError(kPositions, absl::StrCat("has ", table.size(0), " rows, but pos_bias ",
                                                config.max_seq_len));
  }
  const at::Tensor rows = table.select(1, 0).narrow(0, 0, config.max_seq_len).contiguous();
  if (AreWaves(rows)) {
    config.position = PositionKind::kSinusoidal;
    return absl::OkStatus();
  }
  config.position = PositionKind::kLearned;
  config.position_rows = config.max_seq_len;
  import->tensors["position.weight"] = rows;
  return absl::OkStatus();
}

absl::StatusOr<Import> ImportModule(Source& source, const LabmlOptions& options) {
  Import import;
  AFT_ASSIGN_OR_RETURN(const AftLocal local, TakeAftLocal(source, "", "layers.0.", options.window,
                                                          nullptr, {}, &import.tensors));
  import.config = MixerModuleConfig(local.projections);
  AFT_RETURN_IF_ERROR(
      UseBias("pos_bias", local.bias, local.window, "layers.0.", &import.config, &import.tensors));
  return import;
}

absl::StatusOr<Import> ImportModel(Source& source, const LabmlOptions& options) {
  Import import;
  NetworkConfig& config = import.config;
  TensorMap& tensors = import.tensors;
  AFT_ASSIGN_OR_RETURN(tensors["embed.weight"],
                       source.Take(kEmbedding, {Source::kAny, Source::kAny}));
  config.vocab_size = tensors["embed.weight"].size(0);
  config.d_model = tensors["embed.weight"].size(1);
  config.embedding_scale = std::sqrt(static_cast<float>(config.d_model));
  config.activation = options.activation;

  AftLocal first;
  for (int64_t i = 0; i == 0 || source.HasPrefix(absl::StrCat("encoder.layers.", i, ".")); ++i) {
    const std::string from = absl::StrCat("encoder.layers.", i, ".");
    const std::string to = absl::StrCat("layers.", i, ".");
    AFT_RETURN_IF_ERROR(
        CopyNorm(source, from + "norm_self_attn", to + "norm1", config.d_model, &tensors));
    AFT_ASSIGN_OR_RETURN(AftLocal local, TakeAftLocal(source, from + "self_attn.", to,
                                                      options.window, i == 0 ? nullptr : &first,
                                                      {config.d_model, Source::kAny}, &tensors));
    AFT_RETURN_IF_ERROR(
        UseBias(from + "self_attn.pos_bias", local.bias, local.window, to, &config, &tensors));
    if (i == 0) {
      first = std::move(local);
      AFT_ASSIGN_OR_RETURN(const at::Tensor up, source.Take(from + "feed_forward.layer1.weight",
                                                            {Source::kAny, config.d_model}));
      config.d_ff = up.size(0);
    }
    AFT_RETURN_IF_ERROR(CopyNorm(source, from + "norm_ff", to + "norm2", config.d_model, &tensors));
    AFT_RETURN_IF_ERROR(CopyLinear(source, from + "feed_forward.layer1", to + "ffn.up", config.d_ff,
                                   config.d_model, &tensors));
    AFT_RETURN_IF_ERROR(CopyLinear(source, from + "feed_forward.layer2", to + "ffn.down",
                                   config.d_model, config.d_ff, &tensors));
    config.n_layers = i + 1;
  }
  config.qkv_bias = first.projections.qkv_bias;
  config.mixer.hidden = first.projections.hid == config.d_model ? 0 : first.projections.hid;
  AFT_RETURN_IF_ERROR(UsePositions(source, &import));
  AFT_RETURN_IF_ERROR(CopyNorm(source, "encoder.norm", "norm", config.d_model, &tensors));
  AFT_RETURN_IF_ERROR(CopyLinear(source, "generator.projection", "head", config.vocab_size,
                                 config.d_model, &tensors));
  AFT_RETURN_IF_ERROR(UseCharacters(options.chars_path, &import));
  return import;
}

}  // namespace

absl::StatusOr<Import> ImportLabml(const TensorMap& tensors, const LabmlOptions& options) {
  Source source(tensors);
  const bool model = source.HasPrefix("src_embed.") || source.HasPrefix("encoder.");
  if (!model && !options.chars_path.empty()) {
    return absl::InvalidArgumentError("a module by itself has no characters (--chars)");
  }
  AFT_ASSIGN_OR_RETURN(Import import,
                       model ? ImportModel(source, options) : ImportModule(source, options));
  AFT_RETURN_IF_ERROR(source.Finish());
  import.metadata["imported_from"] = "labml-nn";
  return import;
}

}  // namespace aft
