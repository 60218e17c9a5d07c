#ifndef AFT_TESTS_CUDA_AFT_LAYER_H_
#define AFT_TESTS_CUDA_AFT_LAYER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/kernels/aft.h"
#include "model/kernels/cuda/aft/aft.h"
#include "tests/cuda/layer.h"

namespace aft {

struct AftShape {
  int64_t hid = 8;
  int64_t window = 0;
  Number ring = Number::kFp32;
  int64_t prefix_block = 0;
  int64_t bias_rows = 1;
  double spread = 1.0;  // of the biases: N(0, spread^2)
  bool causal = true;

  int64_t columns() const { return causal || window == 0 ? window : 2 * window - 1; }
  kernels::AftStateLayout layout() const { return {hid, window, prefix_block, ring}; }
};

// AFT-simple, AFT-local and AFT-full.
class AftLayer final : public DeviceLayer {
 public:
  // `ahead`: rows of look-ahead; steps then read LayerChunk::age.
  AftLayer(TestRandom& random, const AftShape& shape, int64_t slots = 1, Storage storage = {},
           int64_t ahead = 0);

  std::string Name() const override;
  std::pair<int64_t, int64_t> KeysAndValues() const override {
    return {shape_.hid, 3 * shape_.hid};
  }
  int64_t ValueColumn() const override { return 2 * shape_.hid; }
  Spoilt SpoiltBy(int64_t column, int64_t ago, int64_t c) const override;
  int64_t ShownAt(int64_t column) const override { return column % shape_.hid; }
  std::vector<int64_t> Columns(TestRandom& random) const override;

  const kernels::cuda::AftModel& model() const { return model_; }
  Matrix Sums(int32_t slot) const;  // of look-ahead

 protected:
  Expected Reference(const Matrix& packed, const Matrix& mask) const override;
  Matrix RawInput(TestRandom& random, int64_t tokens, const std::string& keys) const override;
  double StateTolerance(const float* cpu, int64_t i) const override;
  int64_t StepFloats(int64_t /*rows*/) const override { return 0; }
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
  const AftShape shape_;
  const Matrix table_;  // [bias_rows, columns], earliest key first
  const kernels::AftBias cpu_bias_;
  const DeviceArray<float> bias_;
  const kernels::cuda::AftModel model_;
  const int64_t ahead_;
  const int64_t sums_stride_;
  const DeviceArray<float> sums_;
};

}  // namespace aft

#endif  // AFT_TESTS_CUDA_AFT_LAYER_H_
