#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/gpu/device_tensor.h"
#include "model/gpu/gpu_linear.h"
#include "model/kernels/cuda/product/quantize.h"
#include "model/kernels/cuda/wkv/blend.h"

namespace aft {

// Activations that only networks with RWKV's token shift need, for steps of up to `tokens` tokens.
// Each half of a layer uses them anew. They correspond to ShiftBuffers (model/layers).
struct GpuShiftBuffers {
  GpuShiftBuffers() = default;
  GpuShiftBuffers(const NetworkConfig& config, Number format, int64_t tokens, at::Device device);

  // REQUIRES: a network with token shift.
  static int64_t BytesPerToken(const NetworkConfig& config, Number format);
  int64_t bytes() const {
    return inputs.bytes() + quantized.bytes() + narrow.bytes() + rounded.bytes() +
           first_values.bytes();
  }

  // The inputs of part `part` in a step of `count` tokens, and the same as products read them.
  at::Tensor Input(int64_t part, int64_t count) const {
    return inputs.Rows(part * count, count, width);
  }
  at::Tensor Operand(int64_t part, int64_t count) const {
    return (quantized.bytes() > 0 ? quantized : inputs).Rows(part * count, count, width);
  }
  // Prepares the first `rows` rows of all parts for Operand.
  absl::Status QuantizeInputs(int64_t rows, kernels::cuda::Stream stream) const;
  // Applies the functions between the two matrices of parts to `narrow`. Returns the rows that the
  // second matrices read; those of int8 have a scale before each part, and replace Operand.
  absl::StatusOr<at::Tensor> Activate(int64_t count, kernels::cuda::Stream stream) const;

  int64_t quantized_narrow_width() const {
    return narrow_width + (narrow_parts - 1) * kernels::cuda::kScaleBytes;
  }

  int64_t width = 0;         // d
  int64_t narrow_width = 0;  // the ranks of all parts, each with columns of ones for a bias
  int64_t narrow_parts = 0;
  DeviceBuffer inputs;        // [parts, the step's tokens, d], in the activations' format
  DeviceBuffer quantized;     // only with int8 weights: the same, or `narrow`
  DeviceBuffer narrow;        // [tokens, narrow_width] fp32, between the two matrices of parts
  DeviceBuffer rounded;       // the same in the products' format; unused when that is fp32
  DeviceBuffer first_values;  // [tokens, hid] fp32, the values of the first layer
  at::Tensor functions;       // [narrow_width] cuda::ColumnFunction
  at::Tensor narrow_begin;    // [narrow_parts + 1] int32, the first column of each part
};

// TokenShift (model/layers) on a GPU. Immutable and thread-safe.
class GpuTokenShift {
 public:
  // shares [parts, width], on the device.
  explicit GpuTokenShift(const at::Tensor& shares) : shares_(shares) {}

  int64_t parts() const { return shares_.size(0); }

  // Mixes x [tokens, width] fp32, dense, into buffers.inputs, and advances the shift's states.
  absl::Status Forward(const float* x, const kernels::cuda::TokenRows& rows,
                       kernels::cuda::State state, const GpuShiftBuffers& buffers,
                       kernels::cuda::Stream stream) const;

 private:
  at::Tensor shares_;
};

// ShiftedProjection (model/layers) on a GPU. Immutable and thread-safe.
class GpuShiftedProjection {
 public:
  // `tensors`, on the CPU, have those of layer `index`. DATA_LOSS: as GpuLinear::Create.
  static absl::StatusOr<GpuShiftedProjection> Create(const NetworkConfig& config, int64_t index,
                                                     const WeightMap& tensors, Number format,
                                                     at::Device device);

  int64_t weight_bytes() const { return weight_bytes_; }

  // x [N, d] fp32, dense -> packed [N, packed width] fp32. Advances the shift's states. The first
  // layer sets buffers.first_values, and the others read them. `gates` [N, hid] fp32 is scratch.
  absl::Status Forward(const float* x, const kernels::cuda::TokenRows& rows,
                       kernels::cuda::State state, const GpuShiftBuffers& buffers,
                       const at::Tensor& gates, const at::Tensor& packed,
                       kernels::cuda::Stream stream) const;

 private:
  // A product of part `input`, or the two products of a part of low rank.
  struct Part {
    int64_t input = 0;
    int64_t column = 0;  // in packed
    int64_t columns = 0;
    bool gates_values = false;  // the result is `gates`, not a part of packed
    int64_t rank = 0;           // 0: `product` is the only one
    int64_t narrow = 0;         // `down` makes columns [narrow, narrow + rank)
    int64_t activated = 0;  // where `product` reads them in the result of GpuShiftBuffers::Activate
    GpuLinear down;
    GpuLinear product;
  };

  explicit GpuShiftedProjection(GpuTokenShift shift) : shift_(std::move(shift)) {}

  GpuTokenShift shift_;
  std::vector<Part> parts_;
  bool mixes_values_ = false;
  int64_t value_column_ = 0;
  int64_t weight_bytes_ = 0;
};

}  // namespace aft
