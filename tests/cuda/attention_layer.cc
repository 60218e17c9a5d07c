#include "tests/cuda/attention_layer.h"

#include <utility>

namespace aft {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

Matrix PositionKeys(const AttentionLayer& layer) {
  const kernels::AttentionParams& p = layer.params;
  if (p.stores_keys()) return {};
  return {p.position_keys,
          p.position_keys + kernels::RoundUpToKeyBlock(p.position_rows) * p.score_width};
}

}  // namespace

CudaAttention::CudaAttention(std::shared_ptr<const AttentionLayer> layer, int64_t slots,
                             Storage storage)
    : DeviceLayer(layer->params.hid(), layer->packed_width(), layer->slot_floats(), slots, storage),
      layer_(std::move(layer)),
      score_weight_(layer_->score_weight),
      position_keys_(PositionKeys(*layer_)) {}

kernels::AttentionParams CudaAttention::Params() const {
  kernels::AttentionParams params = layer_->params;
  if (params.score_weight != nullptr) params.score_weight = score_weight_.get();
  if (params.position_keys != nullptr) params.position_keys = position_keys_.get();
  return params;
}

// Other heads do not change. Of its own, a tile is done again without tensor cores.
DeviceLayer::Spoilt CudaAttention::SpoiltBy(int64_t column, int64_t ago, int64_t c) const {
  const int64_t width = layer_->params.value_width;
  if (c / width != ShownAt(column) / width) return Spoilt::kNoBit;
  return ago >= 0 || !layer_->params.causal ? Spoilt::kAnything : Spoilt::kRounding;
}

int64_t CudaAttention::ShownAt(int64_t column) const {
  const kernels::AttentionParams& p = layer_->params;
  if (column >= p.ValueColumn()) return column - p.ValueColumn();
  const int64_t score = column < p.KeyColumn() ? column : column - p.KeyColumn();
  return score / p.score_width * p.value_width;
}

std::vector<int64_t> CudaAttention::Columns(TestRandom& random) const {
  const kernels::AttentionParams& p = layer_->params;
  std::vector<int64_t> columns = {random.Below(p.KeyColumn()),
                                  p.ValueColumn() + random.Below(p.hid())};
  if (p.stores_keys()) columns.push_back(p.KeyColumn() + random.Below(p.heads * p.score_width));
  return columns;
}

Matrix CudaAttention::RawInput(TestRandom& random, int64_t tokens,
                               const std::string& /*keys*/) const {
  return random.Normals(tokens * packed_width());
}

DeviceLayer::Expected CudaAttention::Reference(const Matrix& packed, const Matrix& mask) const {
  double largest = 0;
  const std::vector<double> y = AttentionReference(*layer_, packed, mask, generated_, &largest);
  return {y, tolerance::AttentionSplitTf32(largest)};
}

int64_t CudaAttention::StepFloats(int64_t rows) const {
  return kernels::cuda::AttentionStepWorkspaceFloats(layer_->params, rows);
}
int64_t CudaAttention::PrefillFloats(int64_t rows, int64_t tokens) const {
  return kernels::cuda::AttentionPrefillWorkspaceFloats(layer_->params, rows, tokens);
}
int64_t CudaAttention::EncodeFloats(int64_t sequences, int64_t tokens) const {
  return kernels::cuda::AttentionEncodeWorkspaceFloats(layer_->params, sequences, tokens);
}

int CudaAttention::CallStep(const kernels::cuda::StepRows& rows, kernels::cuda::In in,
                            kernels::cuda::State state, kernels::cuda::Out out, float* workspace) {
  return kernels::cuda::AttentionStep(Params(), rows, in, state, out, workspace, nullptr);
}
int CudaAttention::CallPrefill(const kernels::cuda::ChunkRows& chunks, kernels::cuda::In in,
                               kernels::cuda::State state, kernels::cuda::Out out,
                               float* workspace) {
  return kernels::cuda::AttentionPrefill(Params(), chunks, in, state, out, workspace, nullptr);
}
int CudaAttention::CallEncode(const kernels::cuda::Texts& texts, kernels::cuda::In in,
                              kernels::cuda::Out out, float* workspace) {
  return kernels::cuda::AttentionEncode(Params(), texts, in, out, workspace, nullptr);
}

void CudaAttention::CallCpu(const LayerChunk& chunk, int64_t tokens, float* states,
                            int64_t slot_stride, float* y) {
  const int64_t offset[] = {0, tokens};
  const uint8_t generated = Generated(chunk.position) ? 1 : 0;
  const RaggedBatch batch = {1, &chunk.slot, &chunk.position, offset, &generated};
  Matrix scratch(Size(kernels::AttentionScratchFloats(layer_->params)));
  kernels::AttentionForward(layer_->params, batch, chunk.packed.data(), packed_width(), states,
                            slot_stride, y, hid(), scratch.data(), 0, layer_->params.heads);
}

}  // namespace aft
