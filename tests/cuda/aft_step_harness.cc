#include "tests/cuda/aft_step_harness.h"

#include "gtest/gtest.h"

namespace aft::aft_step_test {

Runner::Runner(TestRandom& random, const Layer& layer, int64_t slots, Storage storage,
               int64_t lookahead_rows)
    : LayerStates(random, layer, slots, storage),
      lookahead_rows_(lookahead_rows),
      lookahead_stride_(kernels::cuda::AftLookaheadFloats(model_, lookahead_rows)),
      sums_(static_cast<size_t>(slots * lookahead_stride_)) {}

std::vector<float> Runner::Step(const std::vector<Row>& rows) {
  std::vector<int32_t> slots;
  std::vector<int64_t> positions;
  std::vector<int32_t> ages;
  std::vector<float> qkv;
  for (const Row& row : rows) {
    slots.push_back(row.slot);
    positions.push_back(row.position);
    ages.push_back(row.age);
    qkv.insert(qkv.end(), row.qkv.begin(), row.qkv.end());
  }
  const DeviceMatrix in = In(qkv);
  const DeviceMatrix out = Out(static_cast<int64_t>(rows.size()));
  const DeviceArray<int32_t> slot(slots);
  const DeviceArray<int64_t> position(positions);
  const DeviceArray<int32_t> age(ages);
  kernels::cuda::StepRows batch;
  batch.rows = static_cast<int64_t>(rows.size());
  batch.slot = slot.get();
  batch.position = position.get();
  batch.age = lookahead_rows_ > 0 ? age.get() : nullptr;
  EXPECT_EQ(
      kernels::cuda::AftStep(model_, batch, in.in(), DeviceStates(),
                             {lookahead_rows_, sums_.get(), lookahead_stride_}, out.out(), nullptr),
      0);
  return out.Get();
}

void Runner::StepOnCpu(const std::vector<Row>& rows) {
  for (const Row& row : rows) ChunkOnCpu(row.slot, row.position, row.qkv);
}

std::vector<float> Runner::Sums(int32_t slot) const {
  const std::vector<float> all = sums_.Get();
  const auto begin = all.begin() + slot * lookahead_stride_;
  return {begin, begin + lookahead_stride_};
}

std::vector<float> RowOf(const std::vector<float>& matrix, int64_t width, int64_t t) {
  return {matrix.begin() + t * width, matrix.begin() + (t + 1) * width};
}

void ExpectNear(const std::vector<float>& y, const std::vector<double>& reference, Number type,
                double tolerance) {
  const Errors errors = CompareWith(reference, y);
  if (type == Number::kFp32) {
    EXPECT_LE(errors.worst, tolerance);
    EXPECT_LE(errors.rms, 1e-6);
  } else {
    EXPECT_LE(errors.relative, 1e-2);
    EXPECT_LE(errors.rms, 5e-3);
  }
}

}  // namespace aft::aft_step_test
