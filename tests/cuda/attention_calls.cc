#include <cmath>

#include "model/config/kinds.h"
#include "model/kernels/cuda/attention/attention.h"
#include "tests/cuda/kernel_family.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

namespace cuda = kernels::cuda;
using kernels::AttentionParams;

Matrix Table(const ReferenceTables& tables, const char* name) {
  if (name == nullptr) return {};
  const std::vector<double>& table = tables.at(name);
  return {table.begin(), table.end()};
}

Matrix Packed(const Matrix& keys, int64_t rows) {
  if (rows == 0) return {};
  const int64_t width = static_cast<int64_t>(keys.size()) / rows;
  Matrix packed(static_cast<size_t>(kernels::RoundUpToKeyBlock(rows) * width));
  kernels::PackKeys(keys.data(), rows, width, packed.data());
  return packed;
}

AttentionParams Params(const LayerShape& shape) {
  const MixerConfig& config = shape.config;
  const AttentionScore score = SpecOf(config.kind).attention.score;
  AttentionParams params;
  params.heads = config.heads;
  params.value_width = shape.hid / config.heads;
  params.score_width = config.score_width > 0 ? config.score_width : params.value_width;
  if (score == AttentionScore::kScaledDot) {
    params.scale = 1.0F / std::sqrt(static_cast<float>(params.score_width));
  }
  if (score == AttentionScore::kCosine) params.score = kernels::Score::kCosine;
  if (score == AttentionScore::kAdditive) params.score = kernels::Score::kAdditive;
  params.causal = config.causal;
  params.position_rows = config.band_rows;
  params.block_size = config.block_size;
  params.global_token = config.block_size > 0 && config.global_token;
  params.full_decode = config.full_decode;
  params.capacity = config.band_rows > 0 ? config.band_rows : shape.capacity;
  return params;
}

AttentionParams With(AttentionParams params, const float* score_weight,
                     const float* position_keys) {
  if (params.score == kernels::Score::kAdditive) params.score_weight = score_weight;
  if (params.position_rows > 0) params.position_keys = position_keys;
  return params;
}

class AttentionCalls final : public KernelFamilyCalls {
 public:
  AttentionCalls(const AttentionParams& params, const Matrix& score_weight,
                 const Matrix& position_keys)
      : cpu_score_weight_(score_weight),
        cpu_position_keys_(position_keys),
        score_weight_(score_weight),
        position_keys_(position_keys),
        cpu_(With(params, cpu_score_weight_.data(), cpu_position_keys_.data())),
        params_(With(params, score_weight_.get(), position_keys_.get())) {}

  int64_t state_floats() const override { return kernels::AttentionStateLayout(params_).Floats(); }

  int Step(const cuda::StepRows& rows, cuda::In in, cuda::State state, cuda::Out out) override {
    const auto workspace = Workspace(cuda::AttentionStepWorkspaceFloats(params_, rows.rows));
    return cuda::AttentionStep(params_, rows, in, state, out, workspace.get(), nullptr);
  }
  int Prefill(const cuda::ChunkRows& chunks, cuda::In in, cuda::State state,
              cuda::Out out) override {
    const auto workspace =
        Workspace(cuda::AttentionPrefillWorkspaceFloats(params_, chunks.rows, chunks.tokens));
    return cuda::AttentionPrefill(params_, chunks, in, state, out, workspace.get(), nullptr);
  }
  int Encode(const cuda::Texts& texts, cuda::In in, cuda::Out out) override {
    const auto workspace =
        Workspace(cuda::AttentionEncodeWorkspaceFloats(params_, texts.sequences, texts.tokens));
    return cuda::AttentionEncode(params_, texts, in, out, workspace.get(), nullptr);
  }
  void OnCpu(const RaggedBatch& row, const float* packed, float* states, int64_t slot_stride,
             float* y) override {
    Matrix scratch(static_cast<size_t>(kernels::AttentionScratchFloats(cpu_)));
    const bool strength = cpu_.score == kernels::Score::kCosine;
    kernels::AttentionForward(cpu_, row, packed,
                              cpu_.StrengthColumn() + (strength ? cpu_.heads : 0), states,
                              slot_stride, y, cpu_.hid(), scratch.data(), 0, cpu_.heads);
  }

  double StateTolerance(const float* /*cpu*/, int64_t /*i*/) const override {
    return tolerance::kFewOperations.each;
  }

 private:
  const Matrix cpu_score_weight_;
  const Matrix cpu_position_keys_;
  const DeviceArray<float> score_weight_;
  const DeviceArray<float> position_keys_;
  const AttentionParams cpu_;
  const AttentionParams params_;
};

}  // namespace

std::unique_ptr<KernelFamilyCalls> MakeAttentionCalls(const LayerShape& shape,
                                                      const ReferenceTables& tables) {
  const KindSpec::Attention& kind = SpecOf(shape.config.kind).attention;
  return std::make_unique<AttentionCalls>(
      Params(shape), Table(tables, kind.score_table),
      Packed(Table(tables, kind.key_table), shape.config.band_rows));
}

}  // namespace aft
