#ifndef AFT_MODEL_LAYERS_WEIGHTS_H_
#define AFT_MODEL_LAYERS_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "ATen/core/Tensor.h"
#include "base/check.h"
#include "model/state/aligned_buffer.h"

namespace aft {

// A network's tensors by name, as a checkpoint holds them.
using WeightMap = std::map<std::string, at::Tensor>;

// The one allocation that holds all packed weights of a network, handed out from front to back in
// the order in which a step reads them. Thread-compatible while it is filled.
class WeightArena {
 public:
  explicit WeightArena(AlignedBuffer buffer) : buffer_(std::move(buffer)) {}

  // `floats` at 64-byte alignment, zeroed. REQUIRES: the buffer was made large enough.
  float* Take(int64_t floats) {
    float* taken = buffer_.data() + used_;
    used_ += RoundUpToLine(floats);
    AFT_CHECK(used_ <= buffer_.floats());
    return taken;
  }

  int64_t bytes() const { return buffer_.bytes(); }

 private:
  AlignedBuffer buffer_;
  int64_t used_ = 0;
};

// Data of tensor `name`. REQUIRES: it is there, contiguous fp32 on the CPU (CheckTensors).
const float* TensorData(const WeightMap& tensors, const std::string& name);

}  // namespace aft

#endif  // AFT_MODEL_LAYERS_WEIGHTS_H_
