#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/kernels/cuda/product/product.h"
#include "model/kernels/cuda/product/quantize.h"
#include "model/kernels/cuda/rows/rows.h"
#include "model/kernels/cuda/sampler/sampler.h"
#include "tests/bench/cuda/cases.h"

namespace aft::kernels::cuda {
namespace {

void AddSample(Bench& bench, const char* name, SlotSampling sampling) {
  SamplerSlots slots;
  slots.vocab_size = bench.scale().smoke ? 300 : 50257;
  const int64_t rows = bench.scale().rows(256);
  const auto count = static_cast<size_t>(rows);
  const DeviceArray<float> logits = Filled(rows * slots.vocab_size, -10, 10);
  const DeviceArray<SlotSampling> params(std::vector<SlotSampling>(count, sampling));
  const DeviceArray<TokenCount> counts(
      std::vector<TokenCount>(count * static_cast<size_t>(slots.vocab_size)));
  const DeviceArray<int32_t> last(std::vector<int32_t>(count, 0));
  slots.params = params.get();
  slots.counts = counts.get();
  slots.last_sampled = last.get();
  const DeviceArray<int32_t> slot(Decode::Slots(rows));
  const DeviceArray<uint64_t> index(std::vector<uint64_t>(count, 7));
  const DeviceArray<int32_t> id(count);
  const DeviceArray<float> logprob(count);
  const DeviceArray<int32_t> top_id(count * static_cast<size_t>(kMaxTopLogprobs));
  const DeviceArray<float> top_logprob(count * static_cast<size_t>(kMaxTopLogprobs));
  bench.Add({.name = "sample",
             .shape = absl::StrCat(name, ", B=", rows, " V=", slots.vocab_size),
             .bytes = 4.0 * static_cast<double>(rows * slots.vocab_size),
             .run = [&](Stream stream, int) {
               return Sample(slots, {rows, slot.get(), index.get(), nullptr}, logits.get(),
                             slots.vocab_size,
                             {id.get(), logprob.get(), top_id.get(), top_logprob.get()}, stream);
             }});
}

// A product of our own: few rows in bf16, any number in int8, and the quantization of its rows.
void AddProduct(Bench& bench, int64_t full_rows, int64_t in, int64_t out, Number type) {
  const bool int8 = IsQuantized(type);
  const int64_t rows = bench.scale().smoke ? std::min<int64_t>(full_rows, 20) : full_rows;
  const int64_t stride = int8 ? QuantizedStride(in) : in;
  const DeviceArray<float> from = Filled(rows * in, -1, 1);
  const DeviceArray<uint16_t> x = FilledBf16(rows * stride, -1, 1);
  const DeviceArray<uint16_t> weight = FilledBf16(in * out, -1, 1);
  const DeviceArray<float> scale = Filled(out, 0, 1);
  const DeviceArray<float> y(static_cast<size_t>(rows * out));
  const In read = {reinterpret_cast<char*>(x.get()) + (int8 ? kScaleBytes : 0), type, stride};
  const ProductModel model = {in, out, weight.get(), nullptr, Activation::kNone, scale.get()};
  const auto weights = static_cast<double>(in * out);
  const std::string shape = absl::StrCat(rows, " x ", in, " to ", out, ", ", NumberName(type));
  bench.Add({.name = "product",
             .shape = shape,
             .bytes = static_cast<double>(NumberBytes(type)) *
                          (weights + static_cast<double>(rows * in)) +
                      4.0 * static_cast<double>(rows * out),
             .flops = 2.0 * weights * static_cast<double>(rows),
             .run = [&](Stream stream, int) {
               const Out to = {y.get(), Number::kFp32, out};
               return int8 ? MultiplyInt8(model, read, rows, to, stream)
                           : MultiplyFewRows(model, read, rows, to, stream);
             }});
  if (!int8) return;
  bench.Add({.name = "quantize",
             .shape = absl::StrCat(rows, " x ", in, ", fp32 -> int8"),
             .bytes = 5.0 * static_cast<double>(rows * in),
             .run = [&](Stream stream, int) {
               return QuantizeRows({in}, {from.get(), Number::kFp32, in}, rows,
                                   {reinterpret_cast<char*>(x.get()) + kScaleBytes, type, stride},
                                   stream);
             }});
}

}  // namespace

void AddRows(Bench& bench) {
  const int64_t count = bench.scale().rows(16384);
  const int64_t width = bench.scale().hid();
  const DeviceArray<float> x = Filled(count * width, -1, 1);
  const DeviceArray<float> branch = Filled(count * width, -1, 1);
  const DeviceArray<float> vector = Filled(4 * width, -1, 1);
  const DeviceArray<uint16_t> y(static_cast<size_t>(4 * count * width));
  NormModel norm;
  norm.width = width;
  norm.weight = vector.get();
  norm.bias = vector.get();
  bench.Add({.name = "add_norm",
             .shape = absl::StrCat(count, " x ", width, ", fp32 -> bf16"),
             .bytes = static_cast<double>(count * width) * (4 + 4 + 4 + 2),
             .run = [&](Stream stream, int) {
               return AddNorm(norm, x.get(), {branch.get(), Number::kFp32, width}, vector.get(),
                              count, {y.get(), Number::kBf16, width}, stream);
             }});

  const DeviceArray<float> wide = Filled(4 * count * width, -1, 1);
  bench.Add({.name = "bias_activation",
             .shape = absl::StrCat("gelu, ", count, " x ", 4 * width, ", fp32 -> bf16"),
             .bytes = static_cast<double>(4 * count * width) * (4 + 2),
             .run = [&](Stream stream, int) {
               return BiasActivation({wide.get(), Number::kFp32, 4 * width}, vector.get(),
                                     Activation::kGeluTanh, count, 4 * width,
                                     {y.get(), Number::kBf16, 4 * width}, stream);
             }});
}

void AddProducts(Bench& bench) {
  const int64_t hid = bench.scale().hid();
  for (const int64_t rows : {1, 16}) AddProduct(bench, rows, hid, 4 * hid, Number::kBf16);
  for (const int64_t rows : {1, 16, 32, 64, 256, 1024, 8192}) {
    for (const FormatSpec& spec : kFormats) {
      if (!IsQuantized(spec.format)) continue;
      AddProduct(bench, rows, hid, 4 * hid, spec.format);
      AddProduct(bench, rows, 4 * hid, hid, spec.format);
    }
  }
}

void AddSamplers(Bench& bench) {
  SlotSampling greedy;
  greedy.temperature = 0;
  AddSample(bench, "greedy", greedy);
  AddSample(bench, "temperature 1", {});
  SlotSampling cut;
  cut.top_k = 50;
  cut.top_p = 0.9F;
  AddSample(bench, "top-k 50, top-p 0.9", cut);
}

}  // namespace aft::kernels::cuda
