#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/config/kinds.h"
#include "model/layers/linear.h"
#include "model/layers/token_shift.h"

namespace aft {

// The packed input of a mixer with token shift (KindSpec::token_shift): every part has an input and
// one or two matrices of its own. Immutable and thread-safe.
class ShiftedProjection {
 public:
  // Packs the tensors "<prefix>shift", "<prefix><part>.*" and those of the value gate of layer
  // `index` into `arena`. REQUIRES: they passed CheckTensors.
  ShiftedProjection(const NetworkConfig& config, int64_t index, const std::string& prefix,
                    const WeightMap& tensors, WeightArena& arena);

  // x [N, d] in; wide [N, packed width] out, rows `stride` floats apart. Advances the shift's state
  // of each row. The first layer sets buffers.first_values, and the others read them.
  void Forward(const float* x, const RaggedBatch& batch, StateView shift_state,
               const ShiftBuffers& buffers, float* wide, int64_t stride,
               const Workspace& workspace) const;

  // The largest number of columns between two matrices of a part; 0 without token shift.
  static int64_t LargestRank(const NetworkConfig& config);

 private:
  // Two matrices with an activation between them.
  struct LowRank {
    LowRank(const std::string& prefix, int64_t in, const PackedPart& part, const WeightMap& tensors,
            WeightArena& arena);
    void Forward(const float* x, int64_t tokens, float* narrow, float* y, int64_t stride,
                 const Workspace& workspace) const;

    LinearLayer down;
    LinearLayer up;
    PackedPart::Between between;
  };
  struct Part {
    std::optional<LinearLayer> whole;  // or
    std::optional<LowRank> low_rank;
    int64_t column;  // in the packed input
  };

  void MixValues(const float* input, int64_t tokens, const ShiftBuffers& buffers, float* values,
                 int64_t stride, const Workspace& workspace) const;

  int64_t width_;  // d
  int64_t hid_;
  bool is_first_;
  TokenShift shift_;
  std::vector<Part> parts_;
  std::optional<LowRank> value_gate_;
  size_t value_part_ = 0;
};

}  // namespace aft
