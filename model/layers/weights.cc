#include "model/layers/weights.h"

namespace aft {

const float* TensorData(const WeightMap& tensors, const std::string& name) {
  const auto tensor = tensors.find(name);
  AFT_CHECK(tensor != tensors.end());
  return tensor->second.const_data_ptr<float>();
}

}  // namespace aft
