#pragma once

#include <cstdint>
#include <string>

#include "model/kernels/linear/linear.h"
#include "model/layers/weights.h"
#include "model/mixers/workspace.h"

namespace aft {

// y = x W^T + b with packed weights. Immutable and thread-safe. The result of a row has the same
// bits whatever the other rows are.
class LinearLayer {
 public:
  // Packs the weight [out, in] and bias [out] into `arena`, in its format. There is no bias when
  // its name is empty.
  LinearLayer(const WeightMap& tensors, const std::string& weight, const std::string& bias,
              int64_t in, int64_t out, WeightArena& arena);

  // x [rows, in] -> y [rows, out], both dense.
  void Forward(const float* x, int64_t rows, float* y, kernels::Epilogue epilogue,
               const Workspace& workspace) const;

  // Forward without an epilogue, and with rows of y that are `stride` floats apart.
  void ForwardStrided(const float* x, int64_t rows, float* y, int64_t stride,
                      const Workspace& workspace) const;

  // Computes the columns [first, first + count) of y, and further columns of their panels.
  void ForwardColumns(const float* x, int64_t rows, int64_t first, int64_t count, float* y,
                      const Workspace& workspace) const;

  const kernels::PackedWeight& packed() const { return packed_; }

 private:
  void ForwardPanels(const float* x, int64_t rows, int64_t first, int64_t past, float* y,
                     int64_t stride, kernels::Epilogue epilogue, const Workspace& workspace) const;

  kernels::PackedWeight packed_;
};

}  // namespace aft
