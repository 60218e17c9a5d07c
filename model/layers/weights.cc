#include "model/layers/weights.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "model/config/tensors.h"
#include "model/kernels/linear.h"

namespace aft {

absl::StatusOr<WeightArena> WeightArena::Create(const NetworkConfig& config, Number format,
                                                int64_t more_floats) {
  int64_t floats = more_floats;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    int64_t last = 1;
    int64_t rows = 1;
    for (size_t i = 0; i < spec.shape.size(); ++i) {
      (i + 1 < spec.shape.size() ? rows : last) *= spec.shape[i];
    }
    // fp32 is the largest format, but for what stands beside a few int8 weights.
    floats += RoundUpToLine(std::max(kernels::PackedWeightBytes(last, rows, Number::kFp32),
                                     kernels::PackedWeightBytes(last, rows, Number::kInt8)) /
                            int64_t{sizeof(float)});
  }
  AFT_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Reserve(floats, "weights"));
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
