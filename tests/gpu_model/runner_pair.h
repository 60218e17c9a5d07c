#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "model/gpu/gpu_encoder_runner.h"
#include "model/gpu/gpu_model_runner.h"
#include "model/runtime/cpu_encoder_runner.h"
#include "model/runtime/cpu_model_runner.h"
#include "tests/gpu_model/test_queue.h"
#include "tests/property/runner_calls.h"
#include "tests/support/close.h"
#include "tests/support/tolerances.h"

namespace aft {

// Makes runners of one random model, on the CPU and on the GPU of this test program (test_queue.h).
class RunnerPairFixture : public RunnerCalls {
 protected:
  static constexpr int32_t kSlots = 5;
  static constexpr int64_t kStepTokens = 24;

  RunnerPairFixture() {
    config_.vocab_size = 40;
    config_.d_model = 16;
    config_.n_layers = 2;
    config_.d_ff = 32;
    config_.mixer.window = 5;
    options_.slots = kSlots;
    options_.max_step_tokens = kStepTokens;
  }

  // Draws the weights of config_. Making the first runner calls it if the test did not.
  void DrawWeights() { tensors_ = RandomTensors(config_, random_); }

  std::unique_ptr<CpuModelRunner> Cpu() {
    auto runner = CpuModelRunner::Create(
        CpuModel(),
        {.slots = options_.slots, .max_step_tokens = options_.max_step_tokens, .threads = 1});
    EXPECT_TRUE(runner.ok()) << runner.status();
    return *std::move(runner);
  }

  absl::StatusOr<std::unique_ptr<GpuNetwork>> GpuModel(GpuQueue& queue) {
    if (tensors_.empty()) DrawWeights();
    return GpuNetwork::Create(config_, tensors_, format_,
                              GpuStepShapes(options_.slots, options_.max_step_tokens).limits(),
                              &queue);
  }

  absl::StatusOr<std::unique_ptr<GpuModelRunner>> TryGpu(std::unique_ptr<GpuQueue> queue) {
    auto network = GpuModel(*queue);
    if (!network.ok()) return network.status();
    return GpuModelRunner::Create(std::move(queue), *std::move(network), options_);
  }

  std::unique_ptr<GpuModelRunner> Gpu() {
    auto runner = TryGpu(MakeTestQueue(device_));
    EXPECT_TRUE(runner.ok()) << runner.status();
    return *std::move(runner);
  }

  // Encoders for options_.slots texts and options_.max_step_tokens tokens.
  std::unique_ptr<CpuEncoderRunner> CpuEncoder() {
    auto encoder = CpuEncoderRunner::Create(
        CpuModel(), {options_.slots, options_.max_step_tokens, /*threads=*/1});
    EXPECT_TRUE(encoder.ok()) << encoder.status();
    return *std::move(encoder);
  }

  std::unique_ptr<GpuEncoderRunner> GpuEncoder() {
    std::unique_ptr<GpuQueue> queue = MakeTestQueue(device_);
    auto network = GpuModel(*queue);
    EXPECT_TRUE(network.ok()) << network.status();
    auto encoder = GpuEncoderRunner::Create(std::move(queue), *std::move(network),
                                            {options_.slots, options_.max_step_tokens});
    EXPECT_TRUE(encoder.ok()) << encoder.status();
    return *std::move(encoder);
  }

  // Draws the parameters of a request.
  SamplingParams AnyParams() {
    if (random_.Below(3) == 0) return Greedy();
    SamplingParams params = Warm(static_cast<uint64_t>(random_.Below(1000)));
    params.top_logprobs = static_cast<int32_t>(random_.Below(6)) - 1;
    if (random_.Below(2) == 0) params.top_k = static_cast<int32_t>(1 + random_.Below(10));
    if (random_.Below(2) == 0) params.top_p = 0.8F;
    if (random_.Below(2) == 0) params.repetition_penalty = 1.3F;
    if (random_.Below(2) == 0) params.presence_penalty = 0.4F;
    if (random_.Below(2) == 0) params.frequency_penalty = 0.3F;
    if (random_.Below(2) == 0) params.penalty_decay = 0.9F;
    params.temperature_last = random_.Below(2) == 0;
    return params;
  }

  // Expects the same numbers except for rounding, which may also exchange tokens that nearly tie.
  static constexpr double kTolerance = tolerance::kLogits.each;
  void ExpectNear(const SampledToken& gpu, const SampledToken& cpu) {
    ++tokens_;
    if (gpu.id != cpu.id) {
      ++other_tokens_;
      return;
    }
    EXPECT_NEAR(gpu.logprob, cpu.logprob, kTolerance);
    ASSERT_EQ(gpu.top.size(), cpu.top.size());
    for (size_t i = 0; i < gpu.top.size(); ++i) {
      EXPECT_NEAR(gpu.top[i].logprob, cpu.top[i].logprob, kTolerance);
    }
  }
  void ExpectNear(const std::vector<SampledToken>& gpu, const std::vector<SampledToken>& cpu) {
    ASSERT_EQ(gpu.size(), cpu.size());
    for (size_t i = 0; i < gpu.size(); ++i) ExpectNear(gpu[i], cpu[i]);
  }
  void ExpectNear(const StepOutput& gpu, const StepOutput& cpu) {
    ExpectNear(gpu.sampled, cpu.sampled);
    ASSERT_EQ(gpu.scored.size(), cpu.scored.size());
    for (size_t i = 0; i < gpu.scored.size(); ++i) ExpectNear(gpu.scored[i], cpu.scored[i]);
    ASSERT_EQ(gpu.hidden.size(), cpu.hidden.size());
    for (size_t i = 0; i < gpu.hidden.size(); ++i) {
      EXPECT_TRUE(Close(gpu.hidden[i], cpu.hidden[i], tolerance::kLogits));
    }
  }
  // Two candidates tie to within rounding about once in 10^5 draws. One such draw is allowed, two
  // in one test are too improbable.
  void ExpectTheSameTokens() const {
    EXPECT_GT(tokens_, 0);
    EXPECT_LE(other_tokens_, 1) << "of " << tokens_;
  }

  GpuModelRunner::Options options_;
  Number format_ = Number::kFp32;      // of the weights on the GPU
  Number cpu_format_ = Number::kFp32;  // and on the CPU
  std::shared_ptr<LazyQueue::Control> device_ = std::make_shared<LazyQueue::Control>();
  int64_t tokens_ = 0;        // the number of compared tokens
  int64_t other_tokens_ = 0;  // those of them that differed

 private:
  std::unique_ptr<CpuNetwork> CpuModel() {
    if (tensors_.empty()) DrawWeights();
    auto network = CpuNetwork::Create(config_, tensors_, cpu_format_);
    EXPECT_TRUE(network.ok()) << network.status();
    return *std::move(network);
  }
};

}  // namespace aft
