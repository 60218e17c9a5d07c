#include "model/layers/linear.h"

#include <algorithm>

namespace aft {
namespace {

// Multiply-adds below which a second thread costs more than it brings: about 5 us.
constexpr int64_t kWorkPerThread = 500'000;

}  // namespace

LinearLayer::LinearLayer(const WeightMap& tensors, const std::string& weight,
                         const std::string& bias, int64_t in, int64_t out, WeightArena& arena)
    : packed_(kernels::PackLinear(
          TensorData(tensors, weight), bias.empty() ? nullptr : TensorData(tensors, bias), in, out,
          arena.format(), arena.Take(kernels::PackedWeightFloats(in, out, arena.format())))) {}

void LinearLayer::Forward(const float* x, int64_t rows, float* y, kernels::Epilogue epilogue,
                          const Executor& executor) const {
  const int64_t panel_work = std::max<int64_t>(packed_.in * kernels::kPanel * rows, 1);
  // Four panels and more: with few rows the kernel reads several at once.
  const int64_t grain = std::max<int64_t>(kWorkPerThread / panel_work, 4);
  executor.For(kernels::LinearPanels(packed_.out), grain, [&](int64_t begin, int64_t end, int) {
    kernels::Linear(packed_, x, packed_.in, rows, y, packed_.out, epilogue, begin, end);
  });
}

}  // namespace aft
