#include "model/layers/weights.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"

namespace aft {

absl::StatusOr<WeightArena> WeightArena::Create(int64_t bytes, Number format) {
  AFT_ASSIGN_OR_RETURN(
      AlignedBuffer buffer,
      AlignedBuffer::Reserve(bytes / static_cast<int64_t>(sizeof(float)), "weights"));
  return WeightArena(std::move(buffer), format);
}

float* WeightArena::Take(int64_t floats) {
  float* const taken = buffer_.data() + used_;
  used_ += RoundUpToLine(floats);
  AFT_CHECK(used_ <= buffer_.floats());
  std::fill_n(taken, RoundUpToLine(floats), 0.0F);
  return taken;
}

const float* TensorData(const WeightMap& tensors, const std::string& name) {
  const auto tensor = tensors.find(name);
  AFT_CHECK(tensor != tensors.end());
  return tensor->second.const_data_ptr<float>();
}

}  // namespace aft
