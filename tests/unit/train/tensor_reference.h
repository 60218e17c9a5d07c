#ifndef AFT_TESTS_UNIT_TRAIN_TENSOR_REFERENCE_H_
#define AFT_TESTS_UNIT_TRAIN_TENSOR_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/tensor.h"
#include "model/config/tensors.h"
#include "model/mixers/tables.h"
#include "tests/support/mixer_reference.h"

namespace aft {

inline at::Tensor RandomDoubles(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

inline MixerTables RandomTables(const MixerConfig& config, int64_t hid, uint64_t seed) {
  MixerTables tables;
  for (const TensorSpec& spec : ExpectedMixerTables(config, hid)) {
    tables[spec.name] = RandomDoubles(spec.shape, ++seed);
  }
  return tables;
}

inline std::vector<double> ToVector(const at::Tensor& x) {
  const at::Tensor values = x.detach().to(at::kDouble).contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

// ReferenceMixer of every sequence: packed [B, T, P], mask [B, T] or undefined -> [B, T, hid],
// double.
inline at::Tensor TensorReference(const MixerConfig& config, int64_t hid, const at::Tensor& packed,
                                  const MixerTables& tables, const at::Tensor& mask = {},
                                  int64_t grid_width = 0) {
  ReferenceTables doubles;
  for (const auto& [name, table] : tables) doubles[name] = ToVector(table);
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < packed.size(0); ++b) {
    const std::vector<double> y =
        ReferenceMixer(config, hid, ToVector(packed[b]), doubles,
                       mask.defined() ? ToVector(mask[b]) : std::vector<double>(), grid_width);
    rows.push_back(at::tensor(y, at::kDouble).view({packed.size(1), hid}));
  }
  return at::stack(rows);
}

}  // namespace aft

#endif  // AFT_TESTS_UNIT_TRAIN_TENSOR_REFERENCE_H_
