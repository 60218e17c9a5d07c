#include "model/layers/mixer_layer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "model/config/tensors.h"

namespace aft {

using kernels::Epilogue;

namespace {

std::variant<LinearLayer, ShiftedProjection> MakeInput(const NetworkConfig& config, int64_t index,
                                                       const std::string& prefix,
                                                       const WeightMap& tensors,
                                                       WeightArena& arena) {
  if (SpecOf(config.mixer.kind).token_shift) {
    return ShiftedProjection(config, index, prefix, tensors, arena);
  }
  return LinearLayer(tensors, prefix + "qkv.weight", config.qkv_bias ? prefix + "qkv.bias" : "",
                     config.d_model, PackedWidth(config.mixer, MixerWidth(config)), arena);
}

// Rows that are projected at once where queries, keys and values have vectors of their own.
constexpr int64_t kSourceRows = 32;

}  // namespace

absl::StatusOr<MixerLayer> MixerLayer::Create(const NetworkConfig& config, int64_t index,
                                              const WeightMap& tensors, const MixerOptions& options,
                                              WeightArena& arena) {
  const std::string prefix = absl::StrCat("layers.", index, ".mixer.");
  MixerTables tables;
  for (const auto& [name, tensor] : tensors) {
    if (absl::StartsWith(name, prefix)) tables[name.substr(prefix.size())] = tensor;
  }
  AFT_ASSIGN_OR_RETURN(std::unique_ptr<Mixer> mixer,
                       MakeMixer(config.mixer, MixerWidth(config), tables, options));
  return MixerLayer(config, index, prefix, tensors, std::move(mixer), arena);
}

MixerLayer::MixerLayer(const NetworkConfig& config, int64_t index, const std::string& prefix,
                       const WeightMap& tensors, std::unique_ptr<Mixer> mixer, WeightArena& arena)
    : parts_(SpecOf(config.mixer.kind).packed(config.mixer, MixerWidth(config))),
      packed_width_(PackedWidth(config.mixer, MixerWidth(config))),
      hid_(MixerWidth(config)),
      in_(MakeInput(config, index, prefix, tensors, arena)),
      mixer_(std::move(mixer)),
      out_(tensors, prefix + "out.weight",
           SpecOf(config.mixer.kind).token_shift ? "" : prefix + "out.bias", hid_, config.d_model,
           arena) {}

void MixerLayer::Forward(const float* x, const RaggedBatch& batch, const StateView* states,
                         float* wide, const ShiftBuffers& buffers, float* mixed,
                         const Workspace& workspace) const {
  if (const auto* shifted = std::get_if<ShiftedProjection>(&in_)) {
    shifted->Forward(x, batch, states[1], buffers, wide, packed_width_, workspace);
  } else {
    qkv().Forward(x, batch.offset[batch.rows], wide, Activation::kNone, workspace);
  }
  mixer_->Forward({wide, packed_width_}, batch, states[0], {mixed, hid_}, workspace);
}

void MixerLayer::Encode(const float* x, const SequenceBatch& batch, float* wide, float* mixed,
                        const Workspace& workspace) const {
  qkv().Forward(x, batch.offset[batch.sequences], wide, Activation::kNone, workspace);
  Mix(batch, wide, mixed, workspace);
}

void MixerLayer::Mix(const SequenceBatch& batch, const float* wide, float* mixed,
                     const Workspace& workspace) const {
  const PackedIn queries = {wide, packed_width_};
  if (!batch.by_pairs()) return mixer_->Encode(queries, batch, {mixed, hid_}, workspace);
  PackedIn keys = queries;
  if (batch.key_offset != nullptr) keys.data += batch.offset[batch.sequences] * packed_width_;
  mixer_->EncodePairs(queries, keys, batch, {mixed, hid_}, workspace);
}

int64_t MixerLayer::SourceScratchFloats(const NetworkConfig& config) {
  return kSourceRows * PackedWidth(config.mixer, MixerWidth(config));
}

// Computes columns [first, first + columns) of wide. Panels of the product may reach into other
// parts, so the product is written to scratch and then copied.
void MixerLayer::Project(const float* const* vectors, int64_t sequences, const int64_t* offset,
                         int64_t first, int64_t columns, float* wide,
                         const Workspace& workspace) const {
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t tokens = offset[i + 1] - offset[i];
    for (int64_t t = 0; t < tokens; t += kSourceRows) {
      const int64_t rows = std::min(kSourceRows, tokens - t);
      qkv().ForwardColumns(vectors[i] + t * qkv().packed().in, rows, first, columns,
                           workspace.scratch, workspace);
      for (int64_t row = 0; row < rows; ++row) {
        std::copy_n(workspace.scratch + row * packed_width_ + first, columns,
                    wide + (offset[i] + t + row) * packed_width_ + first);
      }
    }
  }
}

void MixerLayer::EncodeSources(const Sources& sources, const SequenceBatch& batch, float* wide,
                               float* mixed, const Workspace& workspace) const {
  float* keys = wide;
  const int64_t* key_offset = batch.offset;
  if (batch.key_offset != nullptr) {
    keys += batch.offset[batch.sequences] * packed_width_;
    key_offset = batch.key_offset;
  }
  int64_t column = 0;
  for (const PackedPart& part : parts_) {
    const absl::string_view name = part.name;
    if (name == "k") {
      Project(sources.keys, batch.sequences, key_offset, column, part.columns, keys, workspace);
    } else if (name == "v") {
      Project(sources.values, batch.sequences, key_offset, column, part.columns, keys, workspace);
    } else {  // the query, and what its scores are weighted with
      Project(sources.queries, batch.sequences, batch.offset, column, part.columns, wide,
              workspace);
    }
    column += part.columns;
  }
  Mix(batch, wide, mixed, workspace);
}

void MixerLayer::Output(const float* mixed, int64_t tokens, float* y, Epilogue epilogue,
                        const Workspace& workspace) const {
  out_.Forward(mixed, tokens, y, epilogue, workspace);
}

}  // namespace aft
