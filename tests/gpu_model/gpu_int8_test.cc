// Weights of int8 on the GPU: the same model as on the CPU, in a quarter of the memory.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/config/tensors.h"
#include "tests/gpu_model/runner_pair.h"
#include "tests/support/mixer_reference.h"
#include "tests/support/status_matchers.h"

namespace aft {
namespace {

class GpuInt8Test : public RunnerPairFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  GpuInt8Test() { cpu_format_ = format_ = Number::kInt8; }

  // Expects vectors of a GPU that are those of the CPU, and close to float64.
  void ExpectVectors(const std::vector<EncoderInput>& inputs) {
    options_.max_step_tokens = kCaseTokens;
    const std::vector<float> vectors = Run(*GpuEncoder(), inputs);
    EXPECT_TRUE(Close(vectors, Run(*CpuEncoder(), inputs), tolerance::kVectorsInt8Gpu));
    std::vector<double> exact;
    for (const EncoderInput& input : inputs) {
      for (const std::vector<double>& row : NetworkReference(config_, tensors_, input)) {
        exact.insert(exact.end(), row.begin(), row.end());
      }
    }
    EXPECT_TRUE(Close(vectors, exact, tolerance::kVectorsInt8));
  }
};

class GpuInt8DecoderTest : public GpuInt8Test {};

TEST_P(GpuInt8DecoderTest, DistributionsAreThoseOfTheCpu) {
  config_ = GetParam().config;
  config_.vocab_size = kMaxTopLogprobs;
  const auto cpu = Cpu();
  const auto gpu = Gpu();
  EXPECT_EQ(gpu->info().weight_format, "int8");
  const std::vector<TokenId> text = RandomText(40);
  const Matrix logits = NetworkReference(config_, tensors_, text);
  for (const size_t chunk : {1U, 21U}) {  // products of few rows and of many
    const std::vector<SampledToken> expected = Score(*cpu, 0, text, kMaxTopLogprobs, chunk);
    const std::vector<SampledToken> scored = Score(*gpu, 0, text, kMaxTopLogprobs, chunk);
    ASSERT_EQ(scored.size(), text.size() - 1);
    for (size_t i = 0; i < scored.size(); ++i) {
      EXPECT_LE(Divergence(expected[i], scored[i]), tolerance::kDivergenceInt8Gpu) << i;
      const std::vector<double> exact = LogSoftmax(logits[i]);
      double divergence = 0;
      for (const TokenLogprob& token : scored[i].top) {
        const double p = exact[static_cast<size_t>(token.id)];
        divergence += std::exp(p) * (p - double{token.logprob});
      }
      EXPECT_LE(divergence, tolerance::kDivergenceInt8) << i;
    }
    EXPECT_TRUE(Close(Hidden(*gpu, 0, text, chunk), Hidden(*cpu, 0, text, chunk),
                      tolerance::kVectorsInt8Gpu));
  }
  Bind(*cpu, 1, SnapshotOf(*gpu, 0), {});
}

INSTANTIATE_TEST_SUITE_P(Decoders, GpuInt8DecoderTest, testing::ValuesIn(DecoderCases()), CaseName);

class GpuInt8EncoderTest : public GpuInt8Test {};

TEST_P(GpuInt8EncoderTest, VectorsAreThoseOfTheCpu) {
  config_ = GetParam().config;
  DrawWeights();
  ExpectVectors(TextInputs({RandomText(17), RandomText(1), RandomText(40)}));
}

INSTANTIATE_TEST_SUITE_P(Encoders, GpuInt8EncoderTest, testing::ValuesIn(EncoderCases()), CaseName);

class GpuInt8MixerTest : public GpuInt8Test {};

TEST_P(GpuInt8MixerTest, VectorsAreThoseOfTheCpu) {
  config_ = GetParam().config;
  DrawWeights();
  std::vector<EncoderInput> inputs;
  for (const int64_t tokens : {17, 1, 40}) {
    inputs.push_back({.vectors = random_.Normals(tokens * config_.d_model)});
    if (config_.mixer.grid) inputs.back().image_width = 1;
  }
  ExpectVectors(inputs);
}

INSTANTIATE_TEST_SUITE_P(Mixers, GpuInt8MixerTest, testing::ValuesIn(BareMixerCases()), CaseName);

TEST_F(GpuInt8Test, MatricesTakeAQuarterOfTheMemoryAndATiedHeadNone) {
  config_.mixer = {.window = 5};
  config_.vocab_size = 300;
  for (const int64_t width : {40, 64}) {  // 40 is padded to 48
    for (const bool tied : {false, true}) {
      config_.d_model = width;
      config_.d_ff = 3 * width;
      config_.tie_embeddings = tied;
      config_.head_bias = true;
      DrawWeights();
      const auto weight_bytes = [&](Number format) {
        format_ = format;
        return Gpu()->info().weight_bytes;
      };
      const int64_t four = sizeof(float);
      int64_t saved = 0;
      for (const TensorSpec& spec : ExpectedTensors(config_)) {
        if (spec.role != TensorRole::kMatrix) continue;
        const int64_t out = spec.shape[0];
        const int64_t in = spec.shape[1];
        saved += out * (four * in - kernels::cuda::QuantizedColumns(in) - four);
        // The bias is a vector instead of further columns.
        const bool has_bias =
            absl::EndsWith(spec.name, "mixer.qkv.weight") || (spec.name == "head.weight");
        if (has_bias) saved += out * four * (kBiasColumns - 1);
        // A tied head with a bias is a matrix of its own in fp32.
        if (tied && spec.name == "embed.weight") {
          saved += out * four * (in + kBiasColumns - 1);
        }
      }
      const int64_t fp32 = weight_bytes(Number::kFp32);
      const int64_t int8 = weight_bytes(Number::kInt8);
      EXPECT_EQ(fp32 - int8, saved) << width << ", tied " << tied;
      if (width == 64) {
        EXPECT_LT(static_cast<double>(int8), 0.3 * static_cast<double>(fp32));
      }
    }
  }
}

// Together they are wider than the six inputs, with which they share a buffer.
TEST_F(GpuInt8Test, RanksThatAreWideHaveTheMemoryThatTheyNeed) {
  UseMixer(ExampleMixer(MixerKind::kWkv7, 0), &config_);
  MixerConfig& mixer = config_.mixer;
  mixer.decay_rank = mixer.rate_rank = mixer.value_rank = mixer.gate_rank = 5 * config_.d_model;
  const std::vector<TokenId> text = RandomText(kStepTokens);
  EXPECT_TRUE(Close(Hidden(*Gpu(), 0, text, kStepTokens), Hidden(*Cpu(), 0, text, kStepTokens),
                    tolerance::kVectorsInt8Gpu));
}

TEST_F(GpuInt8Test, AFeedForwardThatIsTooWideIsRefused) {
  config_.d_model = 2;
  config_.n_layers = 1;
  config_.mixer = {.kind = MixerKind::kAftSimple};
  config_.d_ff = SpecOf(Number::kInt8).most_inputs + 1;
  EXPECT_THAT(TryGpu(MakeTestQueue(device_)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("d_ff")));
}

}  // namespace
}  // namespace aft
