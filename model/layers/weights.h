#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "model/config/formats.h"
#include "model/state/aligned_buffer.h"

namespace aft {

// A network's tensors by name, as a checkpoint holds them.
using WeightMap = std::map<std::string, at::Tensor>;

// The one allocation that holds all packed weights of a network, handed out from front to back in
// the order in which a step reads them. Thread-compatible while it is filled.
class WeightArena {
 public:
  // Reserves room for `bytes` (model/network/weight_bytes.h). These are addresses only; memory is
  // used as it is taken. Matrices are to be stored in `format`. RESOURCE_EXHAUSTED.
  static absl::StatusOr<WeightArena> Create(int64_t bytes, Number format);

  // Takes `floats`, or bytes, 64-byte aligned and zeroed. REQUIRES: Create got the sum of all.
  float* Take(int64_t floats);
  void* TakeBytes(int64_t bytes) { return Take((bytes + 3) / 4); }

  Number format() const { return format_; }
  int64_t bytes() const { return used_ * static_cast<int64_t>(sizeof(float)); }  // taken

 private:
  WeightArena(AlignedBuffer buffer, Number format) : buffer_(std::move(buffer)), format_(format) {}

  AlignedBuffer buffer_;
  Number format_;
  int64_t used_ = 0;
};

// The data of tensor `name`. REQUIRES: it exists, contiguous fp32 on the CPU (CheckTensors).
const float* TensorData(const WeightMap& tensors, const std::string& name);

}  // namespace aft
