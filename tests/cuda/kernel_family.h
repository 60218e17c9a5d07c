#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/config/config.h"
#include "model/kernels/cuda/types.h"
#include "model/kernels/ragged_batch.h"
#include "tests/cuda/device_array.h"
#include "tests/support/mixer_reference.h"

namespace aft {

using Matrix = std::vector<float>;  // row-major

// A mixer, as far as its kernels must know it.
struct LayerShape {
  MixerConfig config;
  int64_t hid = 24;
  double spread = 1.0;     // of the tables' entries: N(0, spread^2)
  int64_t grid_width = 0;  // of images
  int64_t capacity = 160;  // tokens of a slot, where the state grows
  int64_t ahead = 0;       // AFT: rows of look-ahead
};

// Exactly what a call asks for.
inline DeviceArray<float> Workspace(int64_t floats) {
  return DeviceArray<float>(static_cast<size_t>(floats));
}

// How the kernels of one family are called, with the layer's tables: on the device, each call with
// a workspace of just what it asks for, and on the CPU. Results are cudaError_t values.
class KernelFamilyCalls {
 public:
  virtual ~KernelFamilyCalls() = default;

  virtual int64_t state_floats() const = 0;
  virtual int Step(const kernels::cuda::StepRows& rows, kernels::cuda::In in,
                   kernels::cuda::State state, kernels::cuda::Out out) = 0;
  virtual int Prefill(const kernels::cuda::ChunkRows& chunks, kernels::cuda::In in,
                      kernels::cuda::State state, kernels::cuda::Out out) = 0;
  virtual int Encode(const kernels::cuda::Texts& texts, kernels::cuda::In in,
                     kernels::cuda::Out out) = 0;
  // One row.
  virtual void OnCpu(const RaggedBatch& row, const float* packed, float* states,
                     int64_t slot_stride, float* y) = 0;
  // Allowed difference of number i of a slot's state from the CPU's.
  virtual double StateTolerance(const float* cpu, int64_t i) const = 0;
  // AFT: look-ahead sums of a slot.
  virtual Matrix Sums(int32_t /*slot*/) const { return {}; }
};

std::unique_ptr<KernelFamilyCalls> MakeAftCalls(const LayerShape& shape,
                                                const ReferenceTables& tables, int64_t slots);
std::unique_ptr<KernelFamilyCalls> MakeConvCalls(const LayerShape& shape,
                                                 const ReferenceTables& tables);
std::unique_ptr<KernelFamilyCalls> MakeAttentionCalls(const LayerShape& shape,
                                                      const ReferenceTables& tables);

}  // namespace aft
