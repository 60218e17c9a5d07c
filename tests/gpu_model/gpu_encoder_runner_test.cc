// The GPU's encoder runner over emulated kernels, beside the CPU's.

#include "model/gpu/gpu_encoder_runner.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/runtime/cpu_encoder_runner.h"
#include "tests/gpu_model/lazy_queue.h"
#include "tests/gpu_model/print_case.h"
#include "tests/gpu_model/product_log.h"
#include "tests/property/network_reference.h"
#include "tests/property/random_inputs.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

using testing::HasSubstr;

class GpuEncoderRunnerTest : public testing::Test, public testing::WithParamInterface<NetworkCase> {
 protected:
  static constexpr int64_t kRows = 4;
  static constexpr int64_t kTokens = 48;

  GpuEncoderRunnerTest() : config_(GetParam().config), tensors_(RandomTensors(config_, random_)) {}

  absl::StatusOr<std::unique_ptr<GpuEncoderRunner>> Gpu(std::unique_ptr<GpuQueue> queue) {
    auto network = GpuNetwork::Create(config_, tensors_, Number::kFp32,
                                      {.rows = kRows, .tokens = kTokens}, queue.get());
    if (!network.ok()) return network.status();
    return GpuEncoderRunner::Create(std::move(queue), *std::move(network),
                                    {.max_batch_rows = kRows, .max_batch_tokens = kTokens});
  }

  std::vector<TokenId> RandomText(int64_t length) {
    std::vector<TokenId> text(static_cast<size_t>(length));
    for (TokenId& token : text) token = static_cast<TokenId>(random_.Below(config_.vocab_size));
    return text;
  }

  TestRandom random_;
  const NetworkConfig config_;
  const TensorMap tensors_;
  std::shared_ptr<LazyQueue::Control> device_ = std::make_shared<LazyQueue::Control>();
};

TEST_P(GpuEncoderRunnerTest, GivesTheCpusVectorsAndRefusesTheSame) {
  auto network = CpuNetwork::Create(config_, tensors_);
  ASSERT_TRUE(network.ok()) << network.status();
  const auto cpu = CpuEncoderRunner::Create(
      *std::move(network), {.max_batch_rows = kRows, .max_batch_tokens = kTokens, .threads = 1});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  const auto gpu = Gpu(std::make_unique<LazyQueue>(device_));
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  EXPECT_EQ((*gpu)->width(), (*cpu)->width());
  EXPECT_EQ((*gpu)->info().device, "cuda:0 (a test's CPU)");

  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{1}, {kTokens}, {17, 1, 9, 21}, {}}) {
    SCOPED_TRACE(testing::PrintToString(lengths));
    std::vector<std::vector<TokenId>> texts;
    for (const int64_t length : lengths) texts.push_back(RandomText(length));
    const auto expected = (*cpu)->Encode(texts);
    const auto vectors = (*gpu)->Encode(texts);
    ASSERT_TRUE(expected.ok() && vectors.ok()) << vectors.status();
    ASSERT_EQ(vectors->size(), expected->size());
    for (size_t i = 0; i < texts.size(); ++i) {
      ASSERT_EQ((*vectors)[i].size(), (*expected)[i].size());
      for (size_t n = 0; n < (*vectors)[i].size(); ++n) {
        ASSERT_NEAR((*vectors)[i][n], (*expected)[i][n], tolerance::kUnitVectors.each);
      }
    }
    EXPECT_EQ((*gpu)->device_stats()->step_seconds, 0.5);
    EXPECT_FALSE((*gpu)->device_stats()->step_was_graph);
  }

  const std::vector<std::vector<std::vector<TokenId>>> bad = {
      {{}},
      {RandomText(2), {static_cast<TokenId>(config_.vocab_size)}},
      {RandomText(kTokens), RandomText(1)},
      {{1}, {1}, {1}, {1}, {1}}};
  for (const auto& texts : bad) {
    const absl::Status refused = (*gpu)->Encode(texts).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(refused, (*cpu)->Encode(texts).status());
  }
}

TEST_P(GpuEncoderRunnerTest, AFailedCallIsInternalAndTheNextOneWorks) {
  if (GetParam().name != EncoderCases()[0].name) return;  // one is enough
  const auto gpu = Gpu(std::make_unique<LazyQueue>(device_));
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const std::vector<std::vector<TokenId>> texts = {RandomText(5), RandomText(7)};
  const auto expected = (*gpu)->Encode(texts);
  ASSERT_TRUE(expected.ok());
  device_->fail_copies = 1;
  const absl::Status failed = (*gpu)->Encode(texts).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("no copy today"));
  const auto again = (*gpu)->Encode(texts);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *expected);
}

TEST_P(GpuEncoderRunnerTest, ALostDeviceIsUnavailable) {
  if (GetParam().name != EncoderCases()[0].name) return;  // one is enough
  const auto gpu = Gpu(std::make_unique<LazyQueue>(device_));
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  device_->lost = true;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ((*gpu)->Encode({RandomText(5)}).status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST_P(GpuEncoderRunnerTest, LoadingAndPreparingAThreadComputeProductsOfEverySize) {
  const ProductLog log;
  const auto gpu = Gpu(std::make_unique<LazyQueue>(device_));
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const std::vector<int64_t> loaded = log.rows();
  for (const int64_t rows : {1, 2, 4, 8, 16, 32}) {
    EXPECT_GE(std::count(loaded.begin(), loaded.end(), rows), 4 * config_.n_layers) << rows;
  }
  (*gpu)->PrepareThread();
  EXPECT_EQ(log.rows().size() - loaded.size(), static_cast<size_t>(4 * config_.n_layers));
  EXPECT_EQ((*gpu)->device_stats()->step_seconds, 0);
}

INSTANTIATE_TEST_SUITE_P(Runner, GpuEncoderRunnerTest, testing::ValuesIn(EncoderCases()), NameOf);

}  // namespace
}  // namespace aft
