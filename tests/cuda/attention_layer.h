#ifndef AFT_TESTS_CUDA_ATTENTION_LAYER_H_
#define AFT_TESTS_CUDA_ATTENTION_LAYER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/kernels/attention.h"
#include "model/kernels/cuda/attention/attention.h"
#include "tests/cuda/layer.h"
#include "tests/property/attention_harness.h"

namespace aft {

// The attentions.
class CudaAttention final : public DeviceLayer {
 public:
  // Fields of `layer` that do not change its state's size may change later.
  explicit CudaAttention(std::shared_ptr<const AttentionLayer> layer, int64_t slots = 1,
                         Storage storage = {});

  // The first token that Run generates.
  void set_generated(int64_t position) { generated_ = position; }

  std::string Name() const override { return layer_->Name(); }
  std::pair<int64_t, int64_t> KeysAndValues() const override {
    return {layer_->params.KeyColumn(), layer_->params.StrengthColumn()};
  }
  int64_t ValueColumn() const override { return layer_->params.ValueColumn(); }
  Spoilt SpoiltBy(int64_t column, int64_t ago, int64_t c) const override;
  int64_t ShownAt(int64_t column) const override;
  std::vector<int64_t> Columns(TestRandom& random) const override;

 protected:
  Expected Reference(const Matrix& packed, const Matrix& mask) const override;
  Matrix RawInput(TestRandom& random, int64_t tokens, const std::string& keys) const override;
  double StateTolerance(const float* /*cpu*/, int64_t /*i*/) const override {
    return tolerance::kFewOperations.each;
  }
  bool Generated(int64_t position) const override { return position >= generated_; }
  int64_t StepFloats(int64_t rows) const override;
  int64_t PrefillFloats(int64_t rows, int64_t tokens) const override;
  int64_t EncodeFloats(int64_t sequences, int64_t tokens) const override;
  int CallStep(const kernels::cuda::StepRows& rows, kernels::cuda::In in,
               kernels::cuda::State state, kernels::cuda::Out out, float* workspace) override;
  int CallPrefill(const kernels::cuda::ChunkRows& chunks, kernels::cuda::In in,
                  kernels::cuda::State state, kernels::cuda::Out out, float* workspace) override;
  int CallEncode(const kernels::cuda::Texts& texts, kernels::cuda::In in, kernels::cuda::Out out,
                 float* workspace) override;
  void CallCpu(const LayerChunk& chunk, int64_t tokens, float* states, int64_t slot_stride,
               float* y) override;

 private:
  kernels::AttentionParams Params() const;  // with the tables on the device

  const std::shared_ptr<const AttentionLayer> layer_;
  int64_t generated_ = INT64_MAX;
  const DeviceArray<float> score_weight_;
  const DeviceArray<float> position_keys_;
};

}  // namespace aft

#endif  // AFT_TESTS_CUDA_ATTENTION_LAYER_H_
