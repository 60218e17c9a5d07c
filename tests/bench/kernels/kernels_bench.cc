// Measures kernels alone, on one thread. BM_Linear/FORMAT is compared with LibTorch's at::linear
// (BM_LinearTorch) at the same shapes and numbers of rows. Both print GFLOP/s and the GB/s of
// weights read; BM_LayerNorm prints rows per second.
//   kernels_bench --benchmark_min_time=0.2 --benchmark_filter=Linear

#include <cstdint>
#include <random>
#include <string>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/randn.h"
#include "benchmark/benchmark.h"
#include "c10/core/InferenceMode.h"
#include "model/config/formats.h"
#include "model/kernels/linear/linear.h"
#include "model/kernels/norm.h"
#include "model/state/aligned_buffer.h"

namespace aft {
namespace {

// Uniform values in [-1, 1).
AlignedBuffer Random(int64_t floats) {
  AlignedBuffer buffer = *AlignedBuffer::Create(floats, "random");
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t i = 0; i < floats; ++i) buffer.data()[i] = uniform(random);
  return buffer;
}

void CountLinear(benchmark::State& state, int64_t in, int64_t out, int64_t rows,
                 int64_t weight_bytes = 4) {
  state.counters["GF/s"] = benchmark::Counter(2e-9 * static_cast<double>(in * out * rows),
                                              benchmark::Counter::kIsIterationInvariantRate);
  state.counters["weights_GB/s"] =
      benchmark::Counter(1e-9 * static_cast<double>(weight_bytes * in * out),
                         benchmark::Counter::kIsIterationInvariantRate);
}

void BM_Linear(benchmark::State& state, Number format) {
  const int64_t in = state.range(0);
  const int64_t out = state.range(1);
  const int64_t rows = state.range(2);
  AlignedBuffer weight = Random(in * out);
  AlignedBuffer bias = Random(out);
  AlignedBuffer packed = Random((kernels::PackedWeightBytes(in, out, format) + 3) / 4);
  const kernels::PackedWeight linear =
      kernels::PackLinear(weight.data(), bias.data(), in, out, format, packed.data());
  AlignedBuffer quantized = Random(rows * kernels::QuantizedBytes(format, in) / 4 + 1);
  AlignedBuffer x = Random(rows * in);
  AlignedBuffer y = Random(rows * out);
  for (auto _ : state) {
    kernels::LinearRows input = {x.data(), in, rows};
    if (kernels::QuantizedBytes(format, in) > 0) {
      kernels::QuantizeRows(format, input, in, 0, rows, quantized.data());
      input.quantized = quantized.data();
    }
    kernels::Linear(linear, input, y.data(), out, Activation::kNone, 0, kernels::LinearPanels(out));
    benchmark::ClobberMemory();
  }
  CountLinear(state, in, out, rows, NumberBytes(format));
}

void BM_LinearTorch(benchmark::State& state) {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const at::Tensor weight = at::randn({state.range(1), state.range(0)});
  const at::Tensor bias = at::randn({state.range(1)});
  const at::Tensor x = at::randn({state.range(2), state.range(0)});
  for (auto _ : state) benchmark::DoNotOptimize(at::linear(x, weight, bias));
  CountLinear(state, state.range(0), state.range(1), state.range(2));
}

void LinearShapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"in", "out", "rows"});
  const int64_t shapes[][2] = {{192, 576}, {192, 768}, {768, 192}, {256, 1024}, {768, 3072}};
  for (const auto& shape : shapes) {
    for (const int64_t rows : {1, 2, 4, 8, 16, 64, 256}) {
      bench->Args({shape[0], shape[1], rows});
    }
  }
}
BENCHMARK(BM_LinearTorch)->Apply(LinearShapes);

void BM_LayerNorm(benchmark::State& state) {
  const int64_t width = state.range(0);
  AlignedBuffer x = Random(64 * width);
  AlignedBuffer y = Random(64 * width);
  AlignedBuffer weight = Random(width);
  for (auto _ : state) {
    kernels::LayerNorm(x.data(), width, weight.data(), weight.data(), 1e-5F, y.data(), 0, 64);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * 64);
}
BENCHMARK(BM_LayerNorm)->Arg(192);

}  // namespace
}  // namespace aft

int main(int argc, char** argv) {
  for (const aft::FormatSpec& spec : aft::kFormats) {
    if (!spec.on_cpu) continue;
    benchmark::RegisterBenchmark((std::string("BM_Linear/") + spec.name).c_str(), aft::BM_Linear,
                                 spec.format)
        ->Apply(aft::LinearShapes);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
