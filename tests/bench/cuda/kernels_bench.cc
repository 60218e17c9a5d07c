// Every kernel of model/kernels/cuda at the sizes of a model with d = 1024, against the copy rate
// of the same run. States are larger than any L2.
//
//   cuda_kernels_bench [--json=FILE] [--only=SUBSTRING] [--smoke]
//
// --smoke: sizes that the kernels can run on a CPU (tests/support/cuda_on_cpu), once each: whether
// this program works, nothing about speed.

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/bench/cuda/cases.h"

namespace aft::kernels::cuda {
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
  AddAftStep(bench, 32, full, Number::kFp32, true, full - 1);
  for (const bool bf16 : {false, true}) {
    AddAftPrefill(bench, 16, 1024, 0, bf16);
    AddAftPrefill(bench, 1, 8192, 0, bf16);
    AddAftPrefill(bench, 16, 1024, 32, bf16);
    AddAftPrefill(bench, 1, 8192, 32, bf16);
    AddAftPrefill(bench, 16, 1024, 256, bf16);
    for (const int64_t tokens : {1024, 4096, 16384}) AddAftPrefill(bench, 1, tokens, 32, bf16);
    AddAftPrefill(bench, 1, 4096, bench.scale().tokens(4096), bf16);
  }
  AddConv(bench, 32, 31);
  AddConv(bench, 1024, 31);
  AddAttentionStep(bench, 256, Score::kDot, bench.scale().smoke ? 16 : 128, 0);
  AddAttentionStep(bench, 64, Score::kDot, 0, bench.scale().tokens(4096));
  AddAttentionStep(bench, 1, Score::kDot, 0, bench.scale().tokens(16384));
  AddAttentionStep(bench, 64, Score::kCosine, 0, bench.scale().tokens(4096));
  for (const bool bf16 : {false, true}) {
    AddAttentionPrefill(bench, 16, 1024, bench.scale().smoke ? 16 : 128, bf16);
    for (const int64_t tokens : {1024, 4096, 16384}) {
      AddAttentionPrefill(bench, 1, tokens, bench.scale().smoke ? 16 : 128, bf16);
      AddAttentionPrefill(bench, 1, tokens, 0, bf16);
    }
  }
  AddRows(bench);
  AddSamplers(bench);
}

}  // namespace
}  // namespace aft::kernels::cuda

int main(int argc, char** argv) {
  aft::kernels::cuda::Scale scale;
  std::string json;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--smoke") == 0) {
      scale.smoke = true;
    } else if (std::strncmp(argv[i], "--json=", 7) == 0) {
      json = argv[i] + 7;
    } else if (std::strncmp(argv[i], "--only=", 7) == 0) {
      only = argv[i] + 7;
    } else {
      std::fprintf(stderr, "cuda_kernels_bench: unknown argument %s\n", argv[i]);
      return 2;
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "cuda_kernels_bench: skipped: no CUDA device\n");
    return 0;
  }
  const double copy_rate = aft::CopyRate(scale.smoke ? 1 << 20 : int64_t{1} << 30, scale.smoke);
  aft::kernels::cuda::Bench bench(scale, only);
  aft::kernels::cuda::AddAll(bench);
  std::printf("%s", aft::ToTable(copy_rate, bench.results()).c_str());
  if (!json.empty()) std::ofstream(json) << aft::ToJson(copy_rate, bench.results());
  return 0;
}
