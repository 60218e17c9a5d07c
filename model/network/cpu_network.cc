#include "model/network/cpu_network.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/config/tensors.h"
#include "model/network/weight_bytes.h"

namespace aft {
namespace {

// Logits are computed for this many positions at a time: enough that the head's weights are read
// only a few times, and few enough that a long text to score needs little memory.
constexpr int64_t kLogitRows = 64;

// Copies row `from` of a matrix over row `to`.
void MoveRow(float* matrix, int64_t from, int64_t to, int64_t width) {
  std::memcpy(matrix + to * width, matrix + from * width,
              static_cast<size_t>(width) * sizeof(float));
}

bool Generates(const NetworkConfig& config) {
  return config.architecture == Architecture::kDecoderLm;
}
bool HasHead(const NetworkConfig& config) { return HeadRows(config) > 0; }
bool IsBareMixer(const NetworkConfig& config) {
  return config.architecture == Architecture::kMixer;
}

int64_t LogitRows(const NetworkConfig& config, int64_t max_tokens) {
  return HasHead(config) ? std::min(max_tokens, kLogitRows) : 0;
}

// Bytes for the quantized inputs of a product; 0 when the format does not quantize them.
int64_t QuantizedBytes(const NetworkConfig& config, Number format, int64_t max_tokens) {
  int64_t widest = 0;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    if (spec.role == TensorRole::kMatrix) widest = std::max(widest, spec.shape[1]);
  }
  return max_tokens * kernels::QuantizedBytes(format, widest);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuNetwork>> CpuNetwork::Create(const NetworkConfig& config,
                                                               const TensorSource& tensors,
                                                               Number format) {
  AFT_ASSIGN_OR_RETURN(const uint64_t fingerprint, CheckTensors(config, tensors));
  AFT_RETURN_IF_ERROR(CheckFormat(config, format));
  AFT_ASSIGN_OR_RETURN(WeightArena arena,
                       WeightArena::Create(CountWeightBytes(config, format).total(), format));
  std::unique_ptr<CpuNetwork> network(new CpuNetwork(config, fingerprint, std::move(arena)));
  AFT_RETURN_IF_ERROR(network->LoadLayers(tensors));
  return network;
}

CpuNetwork::CpuNetwork(const NetworkConfig& config, uint64_t fingerprint, WeightArena arena)
    : config_(config), fingerprint_(fingerprint), arena_(std::move(arena)) {}

// The arena is filled in the order in which a step reads it.
absl::Status CpuNetwork::LoadLayers(const TensorSource& source) {
  for (int64_t i = 0; i < config_.n_layers; ++i) {
    const std::string prefix = absl::StrCat("layers.", i, ".");
    AFT_ASSIGN_OR_RETURN(const TensorMap tensors, source.ReadAll(prefix));
    const auto norm = [&](const char* name) {
      return LayerNormLayer(tensors, prefix + name, config_.d_model, config_.norm_eps, arena_);
    };
    std::optional<LayerNormLayer> norm1;
    if (!IsBareMixer(config_)) norm1 = norm("norm1");
    AFT_ASSIGN_OR_RETURN(MixerLayer mixer,
                         MixerLayer::Create(config_, i, tensors, {config_.max_seq_len}, arena_));
    std::optional<CpuLayer::Rest> rest;
    if (norm1.has_value()) {
      rest = {.norm1 = *norm1};
      if (HasFeedForward(config_, i)) {
        if (HasSecondNorm(config_, i)) rest->norm2 = norm("norm2");
        rest->feed_forward.emplace(config_, prefix, tensors, arena_);
      }
    }
    layers_.push_back({std::move(mixer), rest});
    first_state_.push_back(first_state_.back() + layers_.back().state_specs(config_).size());
  }
  if (IsBareMixer(config_)) return absl::OkStatus();
  const auto load_norm = [&](const std::string& name,
                             std::optional<LayerNormLayer>& norm) -> absl::Status {
    AFT_ASSIGN_OR_RETURN(const TensorMap tensors, source.ReadAll(name + "."));
    norm.emplace(tensors, name, config_.d_model, config_.norm_eps, arena_);
    return absl::OkStatus();
  };
  if (HasNormBehind(config_)) AFT_RETURN_IF_ERROR(load_norm("norm", norm_));
  if (config_.embedding_norm) AFT_RETURN_IF_ERROR(load_norm("embed_norm", embedding_norm_));
  if (HasHead(config_)) {
    const std::string name = config_.tie_embeddings ? "embed." : "head.";
    AFT_ASSIGN_OR_RETURN(TensorMap tensors, source.ReadAll(name));
    if (config_.head_bias) {
      AFT_ASSIGN_OR_RETURN(tensors["head.bias"], source.Read("head.bias"));
    }
    head_.emplace(tensors, name + "weight", config_.head_bias ? "head.bias" : "", config_.d_model,
                  HeadRows(config_), arena_);
  }
  kernels::PackedWeight table;
  if (config_.tie_embeddings) {
    table = head_->packed();
  } else {
    AFT_ASSIGN_OR_RETURN(const TensorMap tensors, source.ReadAll("embed."));
    table = LinearLayer(tensors, "embed.weight", "", config_.d_model, config_.vocab_size, arena_)
                .packed();
  }
  AFT_ASSIGN_OR_RETURN(const TensorMap positions, source.ReadAll("position."));
  embedding_.emplace(config_, positions, table, arena_);
  return absl::OkStatus();
}

std::vector<StateSpec> CpuNetwork::state_specs() const {
  std::vector<StateSpec> specs;
  for (const CpuLayer& layer : layers_) {
    for (StateSpec& spec : layer.state_specs(config_)) specs.push_back(std::move(spec));
  }
  return specs;
}

int64_t CpuNetwork::weight_bytes() const {
  int64_t bytes = arena_.bytes();
  for (const CpuLayer& layer : layers_) bytes += layer.mixer.mixer().table_bytes();
  return bytes;
}

int64_t CpuNetwork::ScratchFloats(const NetworkConfig& config, const Mixer& mixer,
                                  int64_t max_tokens) {
  if (Generates(config)) return mixer.scratch_floats();
  const int64_t floats = mixer.encode_scratch_floats(
      config.max_seq_len > 0 ? std::min(max_tokens, config.max_seq_len) : max_tokens);
  return IsBareMixer(config) ? std::max(floats, MixerLayer::SourceScratchFloats(config)) : floats;
}

int64_t CpuNetwork::ScratchFloats(int64_t max_tokens) const {
  int64_t floats = 0;
  for (const CpuLayer& layer : layers_) {
    floats = std::max(floats, ScratchFloats(config_, layer.mixer.mixer(), max_tokens));
  }
  return floats;
}

int64_t CpuNetwork::WorkspaceBytes(const NetworkConfig& config, Number format,
                                   int64_t scratch_floats, int64_t max_tokens, int threads) {
  return QuantizedBytes(config, format, max_tokens) +
         int64_t{sizeof(float)} *
             (Activations::Floats(config, max_tokens, scratch_floats, threads) +
              LogitRows(config, max_tokens) * HeadRows(config));
}

int64_t CpuNetwork::WorkspaceBytes(int64_t max_tokens, int threads) const {
  return WorkspaceBytes(config_, format(), ScratchFloats(max_tokens), max_tokens, threads);
}

absl::Status CpuNetwork::Allocate(int64_t max_tokens, const Executor& executor) {
  AFT_ASSIGN_OR_RETURN(
      activations_, Activations::Create(config_, max_tokens, ScratchFloats(max_tokens), executor));
  max_logit_rows_ = LogitRows(config_, max_tokens);
  AFT_ASSIGN_OR_RETURN(logits_,
                       AlignedBuffer::Create(max_logit_rows_ * HeadRows(config_), "logits"));
  const int64_t quantized = QuantizedBytes(config_, format(), max_tokens);
  if (quantized == 0) return absl::OkStatus();
  AFT_ASSIGN_OR_RETURN(quantized_, AlignedBuffer::Create(quantized / 4, "quantized activations"));
  activations_->shared.quantized = quantized_.data();
  return absl::OkStatus();
}

absl::Status CpuNetwork::Embed(const Batch& batch) {
  const RaggedBatch& rows = batch.rows;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t first = rows.offset[r];
    embedding_->Forward(batch.ids + first, rows.offset[r + 1] - first, rows.position[r],
                        activations_->x + first * config_.d_model);
  }
  NormEmbeddings(batch.tokens);
  return absl::OkStatus();
}

absl::Status CpuNetwork::Embed(const Texts& texts) {
  if (texts.values != nullptr) return absl::OkStatus();  // the mixer reads all three
  for (int64_t i = 0; i < texts.sequences.sequences; ++i) {
    const int64_t first = texts.sequences.offset[i];
    const int64_t tokens = texts.sequences.offset[i + 1] - first;
    float* const x = activations_->x + first * config_.d_model;
    if (texts.vectors == nullptr) {
      embedding_->Forward(texts.ids + first, tokens, 0, x);
      continue;
    }
    std::copy_n(texts.vectors[i], tokens * config_.d_model, x);
    if (embedding_.has_value()) embedding_->AddPositions(tokens, 0, x);
  }
  NormEmbeddings(texts.tokens);
  return absl::OkStatus();
}

void CpuNetwork::NormEmbeddings(int64_t tokens) {
  if (!embedding_norm_.has_value()) return;
  embedding_norm_->Forward(activations_->x, tokens, activations_->x,
                           *activations_->shared.executor);
}

absl::Status CpuNetwork::Mix(int64_t layer, const Batch& batch,
                             const std::vector<StateView>& states) {
  const auto i = static_cast<size_t>(layer);
  const Activations& a = *activations_;
  const float* in = a.x;
  if (!config_.post_norm) {
    layers_[i].rest->norm1.Forward(a.x, batch.tokens, a.mixed, *a.shared.executor);
    in = a.mixed;
  }
  layers_[i].mixer.Forward(in, batch.rows, &states[first_state_[i]], a.wide, a.shift, a.mixed,
                           a.shared);
  return absl::OkStatus();
}

absl::Status CpuNetwork::ShiftFeedForward(int64_t layer, const Batch& batch,
                                          const std::vector<StateView>& states) {
  if (!ShiftsFeedForward(config_)) return absl::OkStatus();
  const auto i = static_cast<size_t>(layer);
  const Activations& a = *activations_;
  const CpuLayer& parts = layers_[i];
  parts.mixer.Output(a.mixed, batch.tokens, a.x, kernels::Epilogue::Add(), a.shared);
  parts.rest->norm2->Forward(a.x, batch.tokens, a.mixed, *a.shared.executor);
  const StateView state = states[first_state_[i + 1] - 1];  // the layer's last one
  parts.rest->feed_forward->shift()->Previous(a.mixed, batch.rows, state, a.shift.previous);
  return absl::OkStatus();
}

absl::Status CpuNetwork::Encode(int64_t layer, const Texts& texts) {
  const CpuLayer& parts = layers_[static_cast<size_t>(layer)];
  const Activations& a = *activations_;
  if (texts.values != nullptr) {
    parts.mixer.EncodeSources({texts.vectors, texts.keys, texts.values}, texts.sequences, a.wide,
                              a.mixed, a.shared);
    return absl::OkStatus();
  }
  const float* in = a.x;
  if (parts.rest.has_value() && !config_.post_norm) {
    parts.rest->norm1.Forward(a.x, texts.tokens, a.mixed, *a.shared.executor);
    in = a.mixed;
  }
  parts.mixer.Encode(in, texts.sequences, a.wide, a.mixed, a.shared);
  return absl::OkStatus();
}

// Outputs are ascending: rows move forward only, so the copies do not overwrite each other.
absl::Status CpuNetwork::Keep(const int64_t* outputs, int64_t count) {
  for (int64_t o = 0; o < count; ++o) {
    if (outputs[o] == o) continue;
    MoveRow(activations_->x, outputs[o], o, config_.d_model);
    MoveRow(activations_->mixed, outputs[o], o, MixerWidth(config_));
    if (ShiftsFeedForward(config_)) {
      MoveRow(activations_->shift.previous, outputs[o], o, config_.d_model);
    }
  }
  return absl::OkStatus();
}

absl::Status CpuNetwork::Finish(int64_t layer, int64_t count) {
  const CpuLayer& parts = layers_[static_cast<size_t>(layer)];
  const Activations& a = *activations_;
  if (!parts.rest.has_value()) {
    parts.mixer.Output(a.mixed, count, a.x, Activation::kNone, a.shared);
    return absl::OkStatus();
  }
  const auto& [norm1, norm2, feed_forward] = *parts.rest;
  if (ShiftsFeedForward(config_)) {
    feed_forward->Forward(a.mixed, count, a.shift, a.wide, a.x, a.shared);
    return absl::OkStatus();
  }
  parts.mixer.Output(a.mixed, count, a.x, kernels::Epilogue::Add(), a.shared);
  if (config_.post_norm) norm1.Forward(a.x, count, a.x, *a.shared.executor);
  if (!feed_forward.has_value()) return absl::OkStatus();
  if (!config_.post_norm) {
    norm2->Forward(a.x, count, a.mixed, *a.shared.executor);
    feed_forward->Forward(a.mixed, count, a.shift, a.wide, a.x, a.shared);
    return absl::OkStatus();
  }
  feed_forward->Forward(a.x, count, a.shift, a.wide, a.x, a.shared);
  if (norm2.has_value()) norm2->Forward(a.x, count, a.x, *a.shared.executor);
  return absl::OkStatus();
}

absl::Status CpuNetwork::FinalNorm(int64_t count) {
  if (!norm_.has_value()) return absl::OkStatus();
  norm_->Forward(activations_->x, count, activations_->x, *activations_->shared.executor);
  return absl::OkStatus();
}

absl::StatusOr<const float*> CpuNetwork::Logits(int64_t first, int64_t count) {
  AFT_CHECK(count <= max_logit_rows_);
  head_->Forward(activations_->x + first * config_.d_model, count, logits_.data(),
                 Activation::kNone, activations_->shared);
  return logits_.data();
}

static_assert(Network<CpuNetwork>);

}  // namespace aft
