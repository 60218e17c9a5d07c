#include "model/layers/shifted_projection.h"

#include <algorithm>

#include "absl/strings/string_view.h"
#include "model/kernels/wkv/blend.h"

namespace aft {
namespace {

// Numbers whose exponentials take some 10 us.
constexpr int64_t kExponentialsPerThread = 8192;

std::vector<PackedPart> PartsOf(const NetworkConfig& config) {
  return SpecOf(config.mixer.kind).packed(config.mixer, MixerWidth(config));
}

}  // namespace

ShiftedProjection::LowRank::LowRank(const std::string& prefix, int64_t in, const PackedPart& part,
                                    const WeightMap& tensors, WeightArena& arena)
    : down(tensors, prefix + part.name + ".down.weight", "", in, part.rank, arena),
      up(tensors, prefix + part.name + ".up.weight",
         part.bias ? prefix + part.name + ".up.bias" : "", part.rank, part.columns, arena),
      between(part.between) {}

void ShiftedProjection::LowRank::Forward(const float* x, int64_t tokens, float* narrow, float* y,
                                         int64_t stride, const Workspace& workspace) const {
  down.Forward(x, tokens, narrow, Activation::kNone, workspace);
  const int64_t numbers = tokens * up.packed().in;
  workspace.executor->For(numbers, kExponentialsPerThread, [&](int64_t begin, int64_t end, int) {
    float* const part = narrow + begin;
    if (between == PackedPart::Between::kTanh) kernels::Tanh(part, end - begin, part);
    if (between == PackedPart::Between::kSigmoid) kernels::Sigmoid(part, end - begin, part);
  });
  up.ForwardStrided(narrow, tokens, y, stride, workspace);
}

ShiftedProjection::ShiftedProjection(const NetworkConfig& config, int64_t index,
                                     const std::string& prefix, const WeightMap& tensors,
                                     WeightArena& arena)
    : width_(config.d_model),
      hid_(MixerWidth(config)),
      is_first_(index == 0),
      shift_(tensors, prefix + "shift", static_cast<int64_t>(PartsOf(config).size()), width_,
             arena) {
  int64_t column = 0;
  for (const PackedPart& spec : PartsOf(config)) {
    Part& part = parts_.emplace_back();
    part.column = column;
    column += spec.columns;
    if (spec.rank == 0) {
      part.whole.emplace(tensors, prefix + spec.name + ".weight", "", width_, spec.columns, arena);
    } else {
      part.low_rank.emplace(prefix, width_, spec, tensors, arena);
    }
    if (absl::string_view(spec.name) == "v") value_part_ = parts_.size() - 1;
  }
  const KindSpec& kind = SpecOf(config.mixer.kind);
  if (kind.value_gate != nullptr && !is_first_) {
    value_gate_.emplace(prefix, width_, kind.value_gate(config.mixer, hid_), tensors, arena);
  }
}

int64_t ShiftedProjection::LargestRank(const NetworkConfig& config) {
  const KindSpec& kind = SpecOf(config.mixer.kind);
  int64_t rank =
      kind.value_gate == nullptr ? 0 : kind.value_gate(config.mixer, MixerWidth(config)).rank;
  for (const PackedPart& part : PartsOf(config)) rank = std::max(rank, part.rank);
  return rank;
}

void ShiftedProjection::Forward(const float* x, const RaggedBatch& batch, StateView shift_state,
                                const ShiftBuffers& buffers, float* wide, int64_t stride,
                                const Workspace& workspace) const {
  const int64_t tokens = batch.offset[batch.rows];
  shift_.Previous(x, batch, shift_state, buffers.previous);
  shift_.Mix(x, buffers.previous, tokens, buffers.inputs, *workspace.executor);
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const float* const input = buffers.inputs + static_cast<int64_t>(i) * tokens * width_;
    float* const y = wide + part.column;
    if (part.whole.has_value()) {
      part.whole->ForwardStrided(input, tokens, y, stride, workspace);
    } else {
      part.low_rank->Forward(input, tokens, buffers.narrow, y, stride, workspace);
    }
  }
  const auto value_input = static_cast<int64_t>(value_part_) * tokens * width_;
  MixValues(buffers.inputs + value_input, tokens, buffers, wide + parts_[value_part_].column,
            stride, workspace);
}

// Layers after the first mix their values with the first layer's.
void ShiftedProjection::MixValues(const float* input, int64_t tokens, const ShiftBuffers& buffers,
                                  float* values, int64_t stride, const Workspace& workspace) const {
  if (is_first_) {
    for (int64_t t = 0; t < tokens; ++t) {
      std::copy_n(values + t * stride, hid_, buffers.first_values + t * hid_);
    }
    return;
  }
  if (!value_gate_.has_value()) return;
  float* const gates = buffers.previous;  // its content was mixed into the inputs
  value_gate_->Forward(input, tokens, buffers.narrow, gates, hid_, workspace);
  workspace.executor->For(tokens, std::max<int64_t>(kExponentialsPerThread / hid_, 1),
                          [&](int64_t begin, int64_t end, int) {
                            for (int64_t t = begin; t < end; ++t) {
                              float* const v = values + t * stride;
                              kernels::BlendGated(v, buffers.first_values + t * hid_,
                                                  gates + t * hid_, hid_, v);
                            }
                          });
}

}  // namespace aft
