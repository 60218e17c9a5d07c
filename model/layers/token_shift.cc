#include "model/layers/token_shift.h"

#include <algorithm>

#include "model/kernels/wkv/blend.h"

namespace aft {

TokenShift::TokenShift(const WeightMap& tensors, const std::string& name, int64_t parts,
                       int64_t width, WeightArena& arena)
    : parts_(parts), width_(width), shares_(arena.Take(parts * width)) {
  std::copy_n(TensorData(tensors, name), parts * width, shares_);
}

void TokenShift::Previous(const float* x, const RaggedBatch& batch, StateView state,
                          float* previous) const {
  for (int64_t r = 0; r < batch.rows; ++r) {
    const int64_t first = batch.offset[r];
    const int64_t last = batch.offset[r + 1] - 1;
    if (last < first) continue;
    float* const before = previous + first * width_;
    const bool padding = batch.slot[r] < 0;
    float* const kept = padding ? nullptr : state.base + batch.slot[r] * state.slot_stride;
    if (padding || batch.position[r] == 0) {
      std::fill_n(before, width_, 0.0F);
    } else {
      std::copy_n(kept, width_, before);
    }
    std::copy_n(x + first * width_, (last - first) * width_, before + width_);
    if (!padding) std::copy_n(x + last * width_, width_, kept);
  }
}

void TokenShift::Mix(const float* x, const float* previous, int64_t tokens, float* inputs,
                     const Executor& executor) const {
  constexpr int64_t kNumbersPerThread = 16'384;  // they take some 10 us
  const int64_t grain = std::max<int64_t>(kNumbersPerThread / (width_ * parts_), 1);
  executor.For(tokens, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t part = 0; part < parts_; ++part) {
        kernels::Blend(x + t * width_, previous + t * width_, shares_ + part * width_, width_,
                       inputs + (part * tokens + t) * width_);
      }
    }
  });
}

}  // namespace aft
