#ifndef AFT_TESTS_CUDA_CONV_LAYER_H_
#define AFT_TESTS_CUDA_CONV_LAYER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/kernels/cuda/conv/conv.h"
#include "tests/cuda/layer.h"

namespace aft {

struct ConvShape {
  int64_t hid = 24;
  int64_t heads = 3;
  int64_t taps = 4;
  double spread = 1.0;  // of the filter's entries: N(0, spread^2)
  Number ring = Number::kFp32;
  bool causal = true;
  int64_t grid_width = 0;  // above 0: images of this width, and filters of taps x taps

  int64_t entries() const { return taps * (grid_width > 0 ? taps : 1); }
};

// AFT-conv.
class ConvLayer final : public DeviceLayer {
 public:
  ConvLayer(TestRandom& random, const ConvShape& shape, int64_t slots = 1, Storage storage = {});

  // [heads, entries()] as conv.w is stored.
  const std::vector<double>& filter() const { return filter_; }
  void set_filter(const std::vector<double>& filter);
  const kernels::cuda::ConvModel& model() const { return model_; }

  std::string Name() const override;
  std::pair<int64_t, int64_t> KeysAndValues() const override { return {hid(), packed_width()}; }
  int64_t ValueColumn() const override { return hid() + shape_.heads; }
  Spoilt SpoiltBy(int64_t column, int64_t ago, int64_t c) const override;
  int64_t ShownAt(int64_t column) const override;
  std::vector<int64_t> Columns(TestRandom& random) const override;

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
  Matrix TapsFirst() const;  // the filter as kernels want it: [entries, heads]

  const ConvShape shape_;
  std::vector<double> filter_;
  DeviceArray<float> device_filter_;
  kernels::cuda::ConvModel model_;
};

}  // namespace aft

#endif  // AFT_TESTS_CUDA_CONV_LAYER_H_
