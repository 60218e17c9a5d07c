// Every kernel of model/kernels/cuda at the sizes of a model with d = 1024, against the copy rate
// of the same run. States are larger than any L2.
//
//   cuda_kernels_bench [--json=FILE] [--only=SUBSTRING] [--smoke]
//
// --smoke: runs each case once, at sizes that a CPU can emulate (tests/support/cuda_on_cpu). This
// shows that the program works, and says nothing about speed.

#include <CLI/CLI.hpp>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "tests/bench/cuda/cases.h"

namespace aft::kernels::cuda {

Bench::Bench(Scale scale, std::string only)
    : scale_(scale),
      only_(std::move(only)),
      copy_rate_(CopyRate(scale.smoke ? 1 << 20 : int64_t{1} << 30, scale.smoke)) {
  results_ = {{"copy_gbs", copy_rate_ / 1e9}, {"cases", nlohmann::ordered_json::array()}};
  absl::PrintF("copy: %.0f GB/s\n%-18s %-58s %10s %9s %8s %7s\n", copy_rate_ / 1e9, "kernel",
               "shape", "us", "GB/s", "% copy", "TFLOP/s");
}

void Bench::Add(const BenchCase& bench) {
  if (!absl::StrContains(absl::StrCat(bench.name, " ", bench.shape), only_)) return;
  const Timing timing = Time(bench, scale_.smoke);
  const double rate = bench.bytes / (timing.microseconds * 1e-6);
  absl::PrintF("%-18s %-58s %10.2f %9.0f %7.1f%% %7.1f%s\n", bench.name, bench.shape,
               timing.microseconds, rate / 1e9, 100 * rate / copy_rate_,
               bench.flops / timing.microseconds * 1e-6,
               timing.graph ? "" : "  (launches, no graph)");
  results_["cases"].push_back({{"name", bench.name},
                               {"shape", bench.shape},
                               {"us", timing.microseconds},
                               {"spread", timing.spread},
                               {"bytes", bench.bytes},
                               {"flops", bench.flops},
                               {"of_copy", rate / copy_rate_},
                               {"graph", timing.graph}});
}

namespace {

void AddAll(Bench& bench) {
  for (const int64_t rows : {1, 64, 2048}) {
    AddAftStep(bench, rows, 0, Number::kFp32, false, 1000);
  }
  for (const int64_t rows : {1, 64, 512}) {
    AddAftStep(bench, rows, 32, Number::kFp32, false, 1000);
  }
  AddAftStep(bench, 1024, 32, Number::kBf16, false, 1000);
  AddAftStep(bench, 512, 32, Number::kFp32, true, 1000);
  AddAftStep(bench, 1024, 32, Number::kBf16, true, 1000);
  AddAftStep(bench, 128, 256, Number::kFp32, false, 1000);
  AddAftStep(bench, 128, 256, Number::kFp32, true, 1000);
  // AFT-full: the ring is the whole context.
  const int64_t full = bench.scale().tokens(2048);
  AddAftStep(bench, 32, full, Number::kFp32, false, full - 1);
  AddAftPrefill(bench, 16, 1024, 0);
  AddAftPrefill(bench, 1, 8192, 0);
  AddAftPrefill(bench, 16, 1024, 32);
  AddAftPrefill(bench, 1, 8192, 32);
  AddAftPrefill(bench, 16, 1024, 256);
  for (const int64_t tokens : {1024, 4096, 16384}) AddAftPrefill(bench, 1, tokens, 32);
  AddAftPrefill(bench, 1, 4096, bench.scale().tokens(4096));
  AddConv(bench, 32, 31);
  AddConv(bench, 1024, 31);
  AddAttentionStep(bench, 256, Score::kDot, bench.scale().smoke ? 16 : 128, 0);
  AddAttentionStep(bench, 64, Score::kDot, 0, bench.scale().tokens(4096));
  AddAttentionStep(bench, 1, Score::kDot, 0, bench.scale().tokens(16384));
  AddAttentionStep(bench, 64, Score::kCosine, 0, bench.scale().tokens(4096));
  AddAttentionPrefill(bench, 16, 1024, bench.scale().smoke ? 16 : 128);
  for (const int64_t tokens : {1024, 4096, 16384}) {
    AddAttentionPrefill(bench, 1, tokens, bench.scale().smoke ? 16 : 128);
    AddAttentionPrefill(bench, 1, tokens, 0);
  }
  AddWkv(bench);
  AddRows(bench);
  AddProducts(bench);
  AddSamplers(bench);
}

}  // namespace
}  // namespace aft::kernels::cuda

int main(int argc, char** argv) {
  aft::kernels::cuda::Scale scale;
  std::string json;
  std::string only;
  CLI::App app("Times the CUDA kernels against the copy rate", "cuda_kernels_bench");
  app.add_option("--json", json, "A file for the results");
  app.add_option("--only", only, "Only cases with this in their name and shape");
  app.add_flag("--smoke", scale.smoke, "Sizes for a CPU, once each");
  CLI11_PARSE(app, argc, argv);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    absl::FPrintF(stderr, "cuda_kernels_bench: skipped: no CUDA device\n");
    return 0;
  }
  aft::kernels::cuda::Bench bench(scale, only);
  aft::kernels::cuda::AddAll(bench);
  if (!json.empty()) std::ofstream(json) << bench.results().dump(1) << "\n";
  return 0;
}
