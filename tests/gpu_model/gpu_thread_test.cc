// Tests of what a runner prepares on the thread that will call it.

#include <cstddef>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "model/config/kinds.h"
#include "model/kernels/cuda/types.h"
#include "tests/gpu_model/product_log.h"
#include "tests/gpu_model/runner_pair.h"

namespace aft {
namespace {

// LibTorch keeps its handles and workspaces of matrix products for each thread. In bf16 products of
// few rows do not use LibTorch.
class GpuThreadTest : public RunnerPairFixture, public testing::WithParamInterface<Number> {
 protected:
  GpuThreadTest() { format_ = GetParam(); }
};

TEST_P(GpuThreadTest, PreparingComputesProductsAndChangesNoSequence) {
  const auto gpu = Gpu();
  Generate(*gpu, 0, RandomText(5), 3, Warm(1));
  const std::string before = SnapshotOf(*gpu, 0);
  const ProductLog log;
  gpu->PrepareThread();
  // Beyond the mixer of the last layer only the rows with an output are computed. The largest step
  // has nine of them, which are few in bf16: of that layer LibTorch computes one product.
  const int64_t products =
      format_ == Number::kFp32 ? 4 * config_.n_layers + 1 : 4 * (config_.n_layers - 1) + 1;
  EXPECT_EQ(log.rows().size(), static_cast<size_t>(products));
  EXPECT_EQ(SnapshotOf(*gpu, 0), before);
}

TEST_P(GpuThreadTest, PreparingForAnEncoderComputesProducts) {
  config_.architecture = Architecture::kEncoder;
  config_.mixer.causal = false;
  for (const int64_t max_seq_len : {0, 7}) {
    config_.max_seq_len = max_seq_len;
    DrawWeights();
    const auto gpu = GpuEncoder();
    const ProductLog log;
    gpu->PrepareThread();
    EXPECT_EQ(log.rows().size(), static_cast<size_t>(4 * config_.n_layers));
    EXPECT_EQ(gpu->device_stats()->step_seconds, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuThreadTest, testing::Values(Number::kFp32, Number::kBf16));

}  // namespace
}  // namespace aft
