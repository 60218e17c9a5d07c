// Encoders on the GPU against the CPU's.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "model/gpu/gpu_network.h"
#include "model/network/cpu_network.h"
#include "tests/cuda/device_array.h"
#include "tests/gpu_model/print_case.h"
#include "tests/gpu_model/test_queue.h"
#include "tests/property/network_reference.h"
#include "tests/support/close.h"
#include "tests/support/serial_executor.h"

namespace aft {
namespace {

class GpuEncoderTest : public testing::TestWithParam<NetworkCase> {
 protected:
  GpuEncoderTest() {
    const NetworkConfig& config = GetParam().config;
    for (const int64_t length : {int64_t{17}, int64_t{1}, int64_t{40}}) {
      for (int64_t t = 0; t < length; ++t) {
        tokens_.push_back(static_cast<int32_t>(random_.Below(config.vocab_size)));
        positions_.push_back(t);
      }
      offsets_.push_back(offsets_.back() + length);
    }
    tensors_ = RandomTensors(config, random_);
  }

  int64_t tokens() const { return offsets_.back(); }

  std::vector<float> OnCpu() const {
    const NetworkConfig& config = GetParam().config;
    const SerialExecutor executor;
    const std::unique_ptr<CpuNetwork> network = *CpuNetwork::Create(config, tensors_);
    EXPECT_TRUE(network->Allocate(tokens(), executor).ok());
    const CpuNetwork::Texts texts = {{3, offsets_.data()}, tokens(), tokens_.data()};
    EXPECT_TRUE(ForwardTexts(*network, texts).ok());
    return {network->vectors(), network->vectors() + tokens() * config.d_model};
  }

  std::vector<float> OnGpu(Number format) const {
    const NetworkConfig& config = GetParam().config;
    const std::unique_ptr<GpuQueue> queue = MakeTestQueue();
    const absl::StatusOr<std::unique_ptr<GpuNetwork>> network =
        GpuNetwork::Create(config, tensors_, format, {4, kCaseTokens}, queue.get());
    EXPECT_TRUE(network.ok()) << network.status();
    if (!network.ok()) return {};
    const DeviceArray<int64_t> offsets(offsets_);
    const DeviceArray<int32_t> ids(tokens_);
    const DeviceArray<int64_t> positions(positions_);
    // Copies to a GPU go through the default stream, for which the queue's own does not wait.
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const GpuNetwork::Texts texts = {
        {3, offsets.get(), nullptr, 0, tokens(), 40}, tokens(), ids.get(), positions.get()};
    const absl::Status status = queue->Run([&] { return ForwardTexts(**network, texts); });
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return {};
    std::vector<float> values(static_cast<size_t>(tokens() * config.d_model));
    EXPECT_TRUE(queue
                    ->Copy(values.data(), (*network)->vectors(),
                           static_cast<int64_t>(values.size() * sizeof(float)))
                    .ok());
    EXPECT_TRUE(queue->Synchronize().ok());
    return values;
  }

  TestRandom random_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> positions_;
  std::vector<int64_t> offsets_ = {0};
  TensorMap tensors_;
};

TEST_P(GpuEncoderTest, VectorsEqualTheCpus) {
  EXPECT_TRUE(Close(OnGpu(Number::kFp32), OnCpu(), tolerance::kVectorsGpu));
}

TEST_P(GpuEncoderTest, SixteenBitWeightsStayClose) {
  const std::vector<float> exact = OnCpu();
  EXPECT_TRUE(Close(OnGpu(Number::kBf16), exact, tolerance::kVectorsBf16));
  EXPECT_TRUE(Close(OnGpu(Number::kFp16), exact, tolerance::kVectorsFp16));
}

INSTANTIATE_TEST_SUITE_P(Encoders, GpuEncoderTest, testing::ValuesIn(EncoderCases()), NameOf);

}  // namespace
}  // namespace aft
