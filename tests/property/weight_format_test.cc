// Tests language models and encoders with weights of 16 and 8 bits on the CPU.

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/ops/from_blob.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "model/kernels/linear/packed_weight.h"
#include "model/runtime/cpu_encoder_runner.h"
#include "model/runtime/cpu_model_runner.h"
#include "tests/property/instruction_sets.h"
#include "tests/property/runner_calls.h"
#include "tests/support/close.h"
#include "tests/support/same_bits.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

using Format = std::tuple<NetworkCase, Number>;

class WeightFormatTest : public RunnerCalls, public testing::WithParamInterface<Format> {
 protected:
  WeightFormatTest() { config_ = std::get<0>(GetParam()).config; }

  static Number format() { return std::get<1>(GetParam()); }
  static bool int8() { return format() == Number::kInt8; }

  std::unique_ptr<CpuNetwork> Network(Number number) {
    if (tensors_.empty()) tensors_ = RandomTensors(config_, random_);
    auto network = CpuNetwork::Create(config_, tensors_, number);
    EXPECT_TRUE(network.ok()) << network.status();
    return *std::move(network);
  }
  std::unique_ptr<CpuModelRunner> Runner(Number number, int threads = 1) {
    auto runner = CpuModelRunner::Create(Network(number),
                                         {.slots = 8, .max_step_tokens = 64, .threads = threads});
    EXPECT_TRUE(runner.ok()) << runner.status();
    return *std::move(runner);
  }
  std::unique_ptr<CpuEncoderRunner> Encoder(Number number, int threads = 1) {
    auto encoder = CpuEncoderRunner::Create(Network(number), {4, 64, threads});
    EXPECT_TRUE(encoder.ok()) << encoder.status();
    return *std::move(encoder);
  }
  // Expects vectors close to those of fp32, and the same bits for each input alone on three
  // threads.
  void ExpectVectors(const std::vector<EncoderInput>& inputs) {
    const std::vector<float> exact = Run(*Encoder(Number::kFp32), inputs);
    const std::vector<float> together = Run(*Encoder(format()), inputs);
    EXPECT_TRUE(Close(together, exact, int8() ? tolerance::kVectorsInt8 : tolerance::kVectorsBf16));
    EXPECT_FALSE(SameBits(together, exact));
    const auto threads = Encoder(format(), 3);
    std::vector<std::vector<float>> apart;
    for (const EncoderInput& input : inputs) apart.push_back(Run(*threads, {input}));
    EXPECT_TRUE(SameBits(Flat(apart), together));
  }
};

std::string FormatName(const testing::TestParamInfo<Format>& test) {
  return std::get<0>(test.param).name + "_" + NumberName(std::get<1>(test.param));
}

class DecoderFormatTest : public WeightFormatTest {};

TEST_P(DecoderFormatTest, DistributionsStayThoseOfFp32) {
  config_.vocab_size = kMaxTopLogprobs;
  const auto fp32 = Runner(Number::kFp32);
  const auto runner = Runner(format());
  EXPECT_EQ(runner->info().weight_format, NumberName(format()));
  EXPECT_LT(runner->info().weight_bytes, fp32->info().weight_bytes);
  const std::vector<TokenId> text = RandomText(40);
  const std::vector<SampledToken> exact = Score(*fp32, 0, text, kMaxTopLogprobs, 40);
  const std::vector<SampledToken> scored = Score(*runner, 0, text, kMaxTopLogprobs, 40);
  ASSERT_EQ(scored.size(), exact.size());
  const double allowed = int8() ? tolerance::kDivergenceInt8 : tolerance::kDivergenceBf16;
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_LE(Divergence(exact[i], scored[i]), allowed) << i;
  }
  // The meaning of a state does not depend on the format of the weights.
  Bind(*fp32, 1, SnapshotOf(*runner, 0), {});
}

TEST_P(DecoderFormatTest, NumericsDependOnlyOnWhatChangesBits) {
  const std::string numerics = Runner(format())->info().numerics;
  EXPECT_EQ(Runner(format(), 3)->info().numerics, numerics);
  EXPECT_EQ((*CpuModelRunner::Create(Network(format()), {.slots = 2, .max_step_tokens = 5}))
                ->info()
                .numerics,
            numerics);
  EXPECT_NE(Runner(Number::kFp32)->info().numerics, numerics);
  std::set<std::string> by_instruction_set;
  for (const int64_t set : InstructionSets()) {
    const UseInstructionSet use(set);
    by_instruction_set.insert(Runner(format())->info().numerics);
  }
  EXPECT_EQ(by_instruction_set.size(), InstructionSets().size());
  EXPECT_EQ(by_instruction_set.count(numerics), 1U);
  // Numerics depend on log-probabilities too, not only on the sampled tokens: weights that differ a
  // little nearly always give the same tokens.
  tensors_.at("embed.weight").select(1, 0).add_(0.1);
  EXPECT_NE(Runner(format())->info().numerics, numerics);
}

TEST_P(DecoderFormatTest, CutsNeighboursAndThreadsChangeNoBit) {
  const auto alone = Runner(format());
  const auto threads = Runner(format(), 3);
  const std::vector<TokenId> text = RandomText(50);
  const std::vector<SampledToken> whole = Score(*alone, 0, text, 3, 50);
  for (const size_t chunk : {1U, 7U, 33U}) {
    EXPECT_TRUE(Same(Score(*alone, 1, text, 3, chunk), whole)) << chunk;
    EXPECT_TRUE(Same(Score(*threads, 1, text, 3, chunk), whole)) << chunk;
  }

  const std::vector<TokenId> prompt = RandomText(9);
  const std::vector<SampledToken> expected = Generate(*alone, 0, prompt, 6, Warm(1));
  std::vector<SampledToken> beside;
  StepInput step;
  for (int32_t slot = 0; slot < 5; ++slot) {
    Bind(*threads, slot, Warm(slot == 3 ? 1 : 7));
    step.rows.push_back({slot, 0, slot == 3 ? prompt : RandomText(1 + 2 * slot), RowOutput::kLast});
  }
  while (beside.size() < expected.size()) {
    const StepOutput output = Step(*threads, step);
    beside.push_back(output.sampled.at(3));
    for (size_t i = 0; i < step.rows.size(); ++i) {
      step.rows[i].first_position += static_cast<int64_t>(step.rows[i].tokens.size());
      step.rows[i].tokens = {output.sampled[i].id};
    }
  }
  EXPECT_TRUE(Same(beside, expected));
}

INSTANTIATE_TEST_SUITE_P(Formats, DecoderFormatTest,
                         testing::Combine(testing::ValuesIn(DecoderCases()),
                                          testing::Values(Number::kBf16, Number::kInt8)),
                         FormatName);

class Int8LimitTest : public RunnerCalls {};

TEST_F(Int8LimitTest, AFeedForwardThatIsTooWideIsRefused) {
  config_.vocab_size = 20;
  config_.d_model = 2;
  config_.n_layers = 1;
  config_.mixer = {.kind = MixerKind::kAftSimple};
  config_.d_ff = SpecOf(Number::kInt8).most_inputs + 1;
  tensors_ = RandomTensors(config_, random_);
  const absl::Status status = CpuNetwork::Create(config_, tensors_, Number::kInt8).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(CpuNetwork::Create(config_, tensors_, Number::kBf16).ok());
  config_.d_ff = SpecOf(Number::kInt8).most_inputs;
  tensors_ = RandomTensors(config_, random_);
  EXPECT_TRUE(CpuNetwork::Create(config_, tensors_, Number::kInt8).ok());
}

// The tensors of a file, with a count of the bytes that are in memory.
class CountedTensors {
 public:
  explicit CountedTensors(const TensorMap& tensors) : tensors_(tensors) {}

  TensorSource Source() {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return {std::move(names), [this](const std::string& name) { return Read(name); },
            [this](const std::string& name) { return tensors_.at(name).sizes().vec(); }};
  }

  int64_t fails_at = -1;  // the index of a read
  int64_t reads = 0;
  int64_t peak = 0;  // bytes

 private:
  absl::StatusOr<at::Tensor> Read(const std::string& name) {
    if (reads++ == fails_at) return absl::DataLossError(name);
    const at::Tensor& tensor = tensors_.at(name);
    held_ += static_cast<int64_t>(tensor.nbytes());
    peak = std::max(peak, held_);
    return at::from_blob(tensor.data_ptr(), tensor.sizes(), [this, bytes = tensor.nbytes()](void*) {
      held_ -= static_cast<int64_t>(bytes);
    });
  }

  const TensorMap& tensors_;
  int64_t held_ = 0;
};

class LoadingTest : public RunnerCalls {
 protected:
  LoadingTest() { config_ = DecoderCases().front().config; }
};

TEST_F(LoadingTest, HoldsALayerAtATime) {
  for (const bool tied : {false, true}) {
    config_.n_layers = 6;
    config_.tie_embeddings = tied;
    config_.head_bias = tied;
    tensors_ = RandomTensors(config_, random_);
    std::map<std::string, int64_t> parts;
    for (const auto& [name, tensor] : tensors_) {
      const std::string layer = name.substr(0, name.find('.', sizeof("layers.")));
      parts[absl::StartsWith(name, "layers.") ? layer : ""] +=
          static_cast<int64_t>(tensor.nbytes());
    }
    int64_t most = 0;
    for (const auto& [part, bytes] : parts) most = std::max(most, bytes);
    CountedTensors counted(tensors_);
    const auto network = CpuNetwork::Create(config_, counted.Source(), Number::kInt8);
    ASSERT_TRUE(network.ok()) << network.status();
    EXPECT_EQ((*network)->fingerprint(), (*CpuNetwork::Create(config_, tensors_))->fingerprint());
    EXPECT_GT(counted.peak, 0);
    EXPECT_LE(counted.peak, most);
  }
}

TEST_F(LoadingTest, EveryFailedReadEndsLoading) {
  config_.tie_embeddings = false;
  config_.head_bias = true;
  config_.position = PositionKind::kLearned;
  config_.position_rows = 8;
  tensors_ = RandomTensors(config_, random_);
  CountedTensors counted(tensors_);
  ASSERT_TRUE(CpuNetwork::Create(config_, counted.Source()).ok());
  ASSERT_GE(counted.reads, 2 * static_cast<int64_t>(tensors_.size()));
  for (int64_t read = 0; read < counted.reads; ++read) {
    CountedTensors failing(tensors_);
    failing.fails_at = read;
    const absl::Status status = CpuNetwork::Create(config_, failing.Source()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << read;
    EXPECT_EQ(tensors_.count(std::string(status.message())), 1) << status;
  }
}

class EncoderFormatTest : public WeightFormatTest {};

TEST_P(EncoderFormatTest, VectorsStayCloseAndNeighboursAndThreadsChangeNoBit) {
  ExpectVectors(TextInputs({RandomText(17), RandomText(1), RandomText(40)}));
}

class BareMixerFormatTest : public WeightFormatTest {};

TEST_P(BareMixerFormatTest, VectorsStayCloseAndNeighboursAndThreadsChangeNoBit) {
  std::vector<EncoderInput> inputs;
  for (const int64_t tokens : {17, 1, 40}) {
    inputs.push_back({.vectors = random_.Normals(tokens * config_.d_model)});
    if (config_.mixer.grid) inputs.back().image_width = 1;
  }
  ExpectVectors(inputs);
}

INSTANTIATE_TEST_SUITE_P(Formats, BareMixerFormatTest,
                         testing::Combine(testing::ValuesIn(BareMixerCases()),
                                          testing::Values(Number::kBf16, Number::kInt8)),
                         FormatName);

INSTANTIATE_TEST_SUITE_P(Formats, EncoderFormatTest,
                         testing::Combine(testing::ValuesIn(EncoderCases()),
                                          testing::Values(Number::kBf16, Number::kInt8)),
                         FormatName);

}  // namespace
}  // namespace aft
