// The network on the GPU against the CPU's, which tests/property/runner_test.cc holds against
// float64.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/kernels/cuda/rows/rows.h"  // kLastSampledToken
#include "tests/gpu_model/decoder_harness.h"
#include "tests/support/cuda_on_cpu/host_queue.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

constexpr double kTolerance = tolerance::kLogits.each;
constexpr int32_t kSlots = 3;

void ExpectClose(const Logits& gpu, const Logits& cpu, double allowed) {
  ASSERT_EQ(gpu.size(), cpu.size());
  for (size_t i = 0; i < gpu.size(); ++i) {
    ASSERT_EQ(gpu[i].size(), cpu[i].size());
    for (size_t v = 0; v < gpu[i].size(); ++v) {
      // NaN fails.
      ASSERT_TRUE(std::abs(gpu[i][v] - cpu[i][v]) <= allowed)
          << "output " << i << ", token " << v << ": " << gpu[i][v] << ", the CPU's " << cpu[i][v];
    }
  }
}

class GpuDecoderTest : public testing::Test {
 protected:
  std::vector<int32_t> Text(const NetworkConfig& config, int64_t tokens) {
    std::vector<int32_t> text;
    for (int64_t i = 0; i < tokens; ++i) {
      text.push_back(static_cast<int32_t>(random_.Below(config.vocab_size)));
    }
    return text;
  }
  static std::vector<int32_t> Part(const std::vector<int32_t>& text, int64_t begin, int64_t end) {
    return {text.begin() + begin, text.begin() + end};
  }

  // Three texts that begin, are cut and go on at different times: chunks alone, chunks beside
  // single tokens, single tokens alone, some with logits of many tokens and some of none.
  std::vector<DecoderStep> MixedSteps(const NetworkConfig& config) {
    const std::vector<int32_t> a = Text(config, 40);
    const std::vector<int32_t> b = Text(config, 40);
    const std::vector<int32_t> c = Text(config, 40);
    std::vector<DecoderStep> steps = {
        {{}, {{0, 0, Part(a, 0, 13)}, {2, 0, Part(b, 0, 21)}}, {5, 6, 33}},
        {{{2, 21, Part(b, 21, 22)}}, {{0, 13, Part(a, 13, 30)}}, {0, 17}},
        {{{2, 22, Part(b, 22, 23)}, {0, 30, Part(a, 30, 31)}}, {{1, 0, Part(c, 0, 9)}}, {}},
    };
    for (int64_t t = 0; t < 5; ++t) {
      steps.push_back({{{0, 31 + t, Part(a, 31 + t, 32 + t)},
                        {1, 9 + t, Part(c, 9 + t, 10 + t)},
                        {2, 23 + t, Part(b, 23 + t, 24 + t)}},
                       {},
                       {0, 1, 2}});
    }
    return steps;
  }

  TestRandom random_;
};

class EveryNetwork : public GpuDecoderTest, public testing::WithParamInterface<NetworkCase> {};

TEST_P(EveryNetwork, LogitsEqualTheCpus) {
  const NetworkConfig& config = GetParam().config;
  const TensorMap tensors = RandomTensors(config, random_);
  CpuDecoder cpu(config, tensors, kSlots);
  GpuTestDecoder gpu(config, tensors, Number::kFp32, kSlots);
  EXPECT_EQ(gpu.network().fingerprint(), cpu.network().fingerprint());
  for (const DecoderStep& step : MixedSteps(config)) {
    ExpectClose(gpu.Run(step), cpu.Run(step), kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Decoders, EveryNetwork, testing::ValuesIn(DecoderCases()), NameOf);

// How much the distribution of `other` differs from that of `exact`, in nats.
double Divergence(const std::vector<float>& exact, const std::vector<float>& other) {
  const std::vector<double> p = LogSoftmax({exact.begin(), exact.end()});
  const std::vector<double> q = LogSoftmax({other.begin(), other.end()});
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  return sum;
}

void ExpectEachAtMost(const std::vector<double>& divergences, double allowed) {
  EXPECT_LE(*std::max_element(divergences.begin(), divergences.end()), allowed);
}

class SixteenBits : public GpuDecoderTest, public testing::WithParamInterface<NetworkCase> {};

TEST_P(SixteenBits, DistributionsStayThoseOfFp32) {
  const NetworkConfig& config = GetParam().config;
  const TensorMap tensors = RandomTensors(config, random_);
  CpuDecoder cpu(config, tensors, kSlots);
  GpuTestDecoder bf16(config, tensors, Number::kBf16, kSlots);
  GpuTestDecoder fp16(config, tensors, Number::kFp16, kSlots);
  EXPECT_EQ(bf16.network().fingerprint(), cpu.network().fingerprint());
  std::vector<double> of_bf16;
  std::vector<double> of_fp16;
  for (const DecoderStep& step : MixedSteps(config)) {
    const Logits exact = cpu.Run(step);
    const Logits in_bf16 = bf16.Run(step);
    const Logits in_fp16 = fp16.Run(step);
    ASSERT_EQ(in_bf16.size(), exact.size());
    ASSERT_EQ(in_fp16.size(), exact.size());
    for (size_t i = 0; i < exact.size(); ++i) {
      of_bf16.push_back(Divergence(exact[i], in_bf16[i]));
      of_fp16.push_back(Divergence(exact[i], in_fp16[i]));
    }
  }
  // Seen: 2.3e-4 and 9e-7 at worst.
  ExpectEachAtMost(of_bf16, tolerance::kDivergenceBf16);
  ExpectEachAtMost(of_fp16, tolerance::kDivergenceFp16);
}

INSTANTIATE_TEST_SUITE_P(Decoders, SixteenBits, testing::ValuesIn(DecoderCases()), NameOf);

NetworkConfig LocalConfig() { return DecoderCases()[1].config; }

TEST_F(GpuDecoderTest, PaddingRowsChangeNothingAndTheLastSampledTokenIsRead) {
  const NetworkConfig config = LocalConfig();
  const TensorMap tensors = RandomTensors(config, random_);
  CpuDecoder cpu(config, tensors, kSlots);
  GpuTestDecoder gpu(config, tensors, Number::kFp32, kSlots);
  const std::vector<int32_t> text = Text(config, 12);
  for (int64_t t = 0; t < 12; ++t) {
    const std::vector<int32_t> token = Part(text, t, t + 1);
    const Logits logits = cpu.Run({{{1, t, token}}, {}, {0}});
    // Padding before and behind; its output is asked for too, as a captured step does.
    const Logits padded = gpu.Run(
        {{{-1, 0, {0}}, {1, t, {kernels::cuda::kLastSampledToken}}, {-1, 7, {3}}}, {}, {0, 1, -1}},
        {-7, token[0], -7});
    ASSERT_EQ(padded.size(), 3U);
    ExpectClose({padded[1]}, logits, kTolerance);
    for (const float logit : padded[2]) ASSERT_TRUE(std::isfinite(logit));
  }
}

TEST_F(GpuDecoderTest, WithoutAListTheFirstRowsAreTheOutputs) {
  const NetworkConfig config = LocalConfig();
  const TensorMap tensors = RandomTensors(config, random_);
  GpuTestDecoder gpu(config, tensors, Number::kFp32, kSlots);
  GpuTestDecoder listed(config, tensors, Number::kFp32, kSlots);
  const DecoderStep step = {{{0, 0, {1}}, {1, 0, {2}}, {2, 0, {3}}}, {}, {0, 1}};
  const Logits expected = listed.Run(step);
  const DeviceStep arrays(step);
  GpuNetwork::Batch batch = arrays.batch();
  batch.outputs = nullptr;
  ASSERT_TRUE(gpu.Forward(batch).ok());
  ExpectClose(gpu.Read(2), expected, tolerance::kLogitsReordered.each);
}

TEST_F(GpuDecoderTest, LogitsComeInParts) {
  const NetworkConfig config = LocalConfig();
  const TensorMap tensors = RandomTensors(config, random_);
  GpuTestDecoder gpu(config, tensors, Number::kFp32, kSlots);
  EXPECT_EQ(gpu.network().max_logit_rows(), kTestLimits.tokens);
  DecoderStep step = {{}, {{0, 0, Text(config, 30)}}, {}};
  for (int64_t t = 0; t < 30; ++t) step.outputs.push_back(t);
  const Logits one_by_one = gpu.Run(step);
  ExpectClose(gpu.Read(30, 8), one_by_one, tolerance::kLogitsReordered.each);
  ExpectClose(gpu.Read(30, 30), one_by_one, tolerance::kLogitsReordered.each);
}

TEST_F(GpuDecoderTest, EveryLayerHasALookAheadOfItsOwn) {
  const NetworkConfig config = DecoderCases()[2].config;  // AFT-full, whose window pays
  ASSERT_GT(config.n_layers, 1);
  const TensorMap tensors = RandomTensors(config, random_);
  CpuDecoder cpu(config, tensors, kSlots);
  GpuTestDecoder gpu(config, tensors, Number::kFp32, kSlots);
  const auto rows = static_cast<int32_t>(gpu.network().lookahead_rows());
  ASSERT_GT(rows, 1);
  const std::vector<int32_t> a = Text(config, 40);
  const std::vector<int32_t> b = Text(config, 40);
  const DecoderStep prompts = {{}, {{0, 0, Part(a, 0, 10)}, {2, 0, Part(b, 0, 15)}}, {9, 24}};
  ExpectClose(gpu.Run(prompts), cpu.Run(prompts), kTolerance);
  for (int32_t t = 0; t < 25; ++t) {
    const DecoderStep step = {
        {{2, 15 + t, Part(b, 15 + t, 16 + t)}, {0, 10 + t, Part(a, 10 + t, 11 + t)}}, {}, {0, 1}};
    // The second text looks ahead later.
    ExpectClose(gpu.Run(step, {}, {t % rows, t < 3 ? -1 : (t - 3) % rows}), cpu.Run(step),
                kTolerance);
  }
}

TEST_F(GpuDecoderTest, ACapturedStepFollowsItsArrays) {
  const NetworkConfig config = LocalConfig();
  const TensorMap tensors = RandomTensors(config, random_);
  CpuDecoder cpu(config, tensors, kSlots);
  GpuTestDecoder gpu(config, tensors, Number::kFp32, kSlots);
  const std::vector<int32_t> text = Text(config, 12);
  const auto step = [&](int64_t t) -> DecoderStep {
    return {{{2, t, Part(text, t, t + 1)}, {-1, 0, {0}}}, {}, {0, -1}};
  };
  DeviceStep arrays(step(0));
  ASSERT_TRUE(gpu.Forward(arrays.batch()).ok());  // LibTorch takes what a capture may not
  const absl::StatusOr<std::unique_ptr<GpuGraph>> graph =
      gpu.queue().Capture([&] { return gpu.Forward(arrays.batch()); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int64_t t = 0; t < 12; ++t) {
    // Steps of other shapes between do not disturb it.
    if (t % 4 == 3) gpu.Run({{}, {{0, 0, Text(config, 5)}}, {4}});
    arrays.Set(step(t));
    ASSERT_TRUE((*graph)->Launch().ok());
    ExpectClose({gpu.Read(2)[0]}, cpu.Run({{{2, t, Part(text, t, t + 1)}}, {}, {0}}), kTolerance);
  }
}

TEST_F(GpuDecoderTest, TooLittleMemoryIsToldInNumbersBeforeAnythingIsTaken) {
  const NetworkConfig config = LocalConfig();
  const TensorMap tensors = RandomTensors(config, random_);
  HostQueue queue(/*free_bytes=*/100 << 10);
  const absl::Status status =
      GpuNetwork::Create(config, tensors, Number::kFp32, kTestLimits, &queue).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"cuda:0", "0.1 MiB of 1024.0 MiB free", "weights ",
                           "activations of 96 tokens ", "logits of 96 tokens "}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status;
  }
}

TEST_F(GpuDecoderTest, SixteenBitWeightsTakeHalfTheMemoryAndATiedHeadNone) {
  NetworkConfig config = LocalConfig();
  config.head_bias = false;
  const TensorMap tensors = RandomTensors(config, random_);
  GpuTestDecoder fp32(config, tensors, Number::kFp32, kSlots);
  GpuTestDecoder bf16(config, tensors, Number::kBf16, kSlots);
  const double ratio = static_cast<double>(bf16.network().weight_bytes()) /
                       static_cast<double>(fp32.network().weight_bytes());
  EXPECT_GT(ratio, 0.5);
  EXPECT_LT(ratio, 0.55);
  NetworkConfig tied = config;
  tied.tie_embeddings = true;
  GpuTestDecoder shared(tied, RandomTensors(tied, random_), Number::kFp32, kSlots);
  EXPECT_EQ(fp32.network().weight_bytes() - shared.network().weight_bytes(),
            config.vocab_size * config.d_model * int64_t{sizeof(float)});
}

TEST_F(GpuDecoderTest, WhatTheFormatCannotHoldIsDataLoss) {
  const NetworkConfig config = LocalConfig();
  TensorMap tensors = RandomTensors(config, random_);
  tensors["layers.1.ffn.up.weight"].data_ptr<float>()[7] = 1e6F;
  HostQueue queue;
  const absl::Status status =
      GpuNetwork::Create(config, tensors, Number::kFp16, kTestLimits, &queue).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("layers.1.ffn.up"), std::string::npos) << status;
  tensors.erase("norm.bias");
  EXPECT_EQ(GpuNetwork::Create(config, tensors, Number::kFp32, kTestLimits, &queue).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace aft
