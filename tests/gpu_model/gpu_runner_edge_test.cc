// Tests of the GPU runners with errors, limits, and sequences that move between devices.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ATen/ops/empty.h"
#include "c10/core/CPUAllocator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu_model/product_log.h"
#include "tests/gpu_model/runner_pair.h"
#include "tests/support/collect.h"
#include "tests/support/cuda_on_cpu/launch_log.h"
#include "tests/support/cuda_on_cpu/threads.h"
#include "tests/support/formats.h"
#include "tests/support/mixer_reference.h"
#include "tests/support/status_matchers.h"

namespace aft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Counts what LibTorch allocates on the CPU, which is the device here.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this); }
  ~CountingAllocator() override { c10::SetCPUAllocator(before_); }

  c10::DataPtr allocate(size_t bytes) override {
    ++count_;
    return before_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return before_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    before_->copy_data(to, from, bytes);
  }
  int count() const { return count_; }

 private:
  c10::Allocator* const before_;
  int count_ = 0;
};

class GpuRunnerEdgeTest : public RunnerPairFixture {
 protected:
  // Begins a sequence on one runner and continues it on another, which gets only its snapshot.
  void ExpectMoves(ModelRunner& from, ModelRunner& to, const SamplingParams& params) {
    const std::vector<TokenId> prompt = RandomText(9);
    const std::vector<SampledToken> begun = Generate(from, 1, prompt, 3, params);
    const std::string snapshot = SnapshotOf(from, 1);
    Uses uses;
    uses.Add(prompt);
    const std::vector<TokenUse> had = uses.all();
    std::vector<TokenId> sampled;
    for (const SampledToken& token : begun) sampled.push_back(token.id);
    EXPECT_EQ(Bind(to, 4, snapshot, {params, begun.size(), had, sampled}), 11);
    EXPECT_EQ(SnapshotOf(to, 4), snapshot);
    const TokenId last = begun.back().id;
    ExpectNear(Continue(to, 4, 11, last, 7), Continue(from, 1, 11, last, 7));
  }

  struct StepWork {
    int64_t launches;               // of our kernels
    std::vector<int64_t> products;  // rows of each product that LibTorch computed
  };
  // Returns the work of a recorded step of one token.
  StepWork WorkOfADecodeStep() {
    const auto gpu = Gpu();
    Bind(*gpu, 0, Greedy());
    Step(*gpu, {{{0, 0, {1}, RowOutput::kLast}}});
    const ProductLog products;
    const int64_t launches = cuda_on_cpu::LaunchCount();
    Step(*gpu, {{{0, 1, {kLastSampled}, RowOutput::kLast}}});
    EXPECT_TRUE(gpu->device_stats()->step_was_graph);
    return {cuda_on_cpu::LaunchCount() - launches, products.rows()};
  }

  // A number of nodes: in every layer, in the rest of the network, and in addition in every layer
  // from the second one on.
  struct Nodes {
    int64_t layer = 0;
    int64_t rest = 0;
    int64_t later = 0;
    int64_t Of(int64_t layers) const { return layer * layers + rest + later * (layers - 1); }
  };
  // Expects these nodes in the recorded step of one token, for networks of one and of three layers.
  void ExpectDecodeStep(const Nodes& launches, const Nodes& products) {
    for (const int64_t layers : {1, 3}) {
      SCOPED_TRACE(testing::Message()
                   << MixerKindName(config_.mixer.kind) << ", layers " << layers);
      config_.n_layers = layers;
      DrawWeights();
      const StepWork work = WorkOfADecodeStep();
      EXPECT_EQ(work.launches, launches.Of(layers));
      EXPECT_EQ(work.products, std::vector<int64_t>(static_cast<size_t>(products.Of(layers)), 1));
    }
  }
};

TEST_F(GpuRunnerEdgeTest, SequencesMoveBetweenTheCpuAndTheGpu) {
  SamplingParams penalties = Warm(8);
  penalties.repetition_penalty = 1.5F;
  penalties.frequency_penalty = 0.3F;
  penalties.penalty_decay = 0.9F;
  for (const MixerConfig& mixer : {MixerConfig{.window = 5},
                                   {.kind = MixerKind::kAftConv, .window = 5, .heads = 2},
                                   {.kind = MixerKind::kDotProduct, .heads = 2},
                                   ExampleMixer(MixerKind::kWkv4, 80),
                                   ExampleMixer(MixerKind::kWkv7, 80)}) {
    UseMixer(mixer, &config_);
    config_.max_seq_len = StateGrows(mixer) ? 80 : 0;
    DrawWeights();
    const auto cpu = Cpu();
    const auto gpu = Gpu();
    const auto other = Gpu();
    EXPECT_EQ(gpu->info().state_bytes, cpu->info().state_bytes);
    for (const SamplingParams& params : {Greedy(), penalties}) {
      ExpectMoves(*cpu, *gpu, params);
      ExpectMoves(*gpu, *cpu, params);
      ExpectMoves(*gpu, *other, params);
    }
  }
  ExpectTheSameTokens();
}

TEST_F(GpuRunnerEdgeTest, AStepSubmittedBeforeAnOverflowIsKnownSucceeds) {
  DrawWeights();
  tensors_.at("embed.weight")[7].fill_(3e38);  // finite, but its norm overflows
  const auto gpu = Gpu();
  const std::vector<SampledToken> expected = Generate(*gpu, 0, {1, 2, 3}, 2, Greedy());
  Bind(*gpu, 0, Greedy());
  Bind(*gpu, 1, Greedy());
  const auto first =
      gpu->Submit({{{1, 0, {1, 7}, RowOutput::kLast}, {0, 0, {1, 2, 3}, RowOutput::kLast}}});
  const auto second = gpu->Submit(
      {{{1, 2, {kLastSampled}, RowOutput::kLast}, {0, 3, {kLastSampled}, RowOutput::kLast}}});
  ASSERT_TRUE(first.ok() && second.ok());
  const auto both = Collect(*gpu, *first);
  const auto next = Collect(*gpu, *second);
  ASSERT_TRUE(both.ok() && next.ok());
  EXPECT_EQ(both->sampled.at(0).id, kNoToken);
  ExpectNear({both->sampled.at(1), next->sampled.at(1)}, expected);
  ExpectTheSameTokens();
  // A new sequence in the slot is not affected.
  EXPECT_TRUE(Same(Generate(*gpu, 1, {1, 2, 3}, 2, Greedy()), expected));
}

TEST_F(GpuRunnerEdgeTest, AFailedStepIsInternalAndTheRunnerContinues) {
  const auto gpu = Gpu();
  const std::vector<TokenId> prompt = RandomText(5);
  const std::vector<SampledToken> expected = Generate(*gpu, 0, prompt, 4, Warm(1));
  const auto fails = [&](const StepInput& step) {
    EXPECT_THAT(gpu->Submit(step), StatusIs(absl::StatusCode::kInternal, HasSubstr("today")));
  };
  device_->fail_copies = 1;
  fails({{{0, 8, {1}, RowOutput::kLast}}});
  Bind(*gpu, 0, Warm(1));
  device_->fail_copies = 1;  // the copy of the parameters
  fails({{{0, 0, prompt, RowOutput::kLast}}});
  EXPECT_TRUE(Same(Generate(*gpu, 0, prompt, 4, Warm(1)), expected));
  device_->fail_graphs = 1;
  fails({{{0, 8, {1}, RowOutput::kLast}}});
  EXPECT_TRUE(Same(Generate(*gpu, 0, prompt, 4, Warm(1)), expected));

  device_->fail_copies = 1;
  EXPECT_EQ(SnapshotOf(*gpu, 0), "");
  const std::string snapshot = SnapshotOf(*gpu, 0);
  device_->fail_copies = 1;
  EXPECT_FALSE(gpu->BindSlot(1, snapshot, {Warm(1)}).ok());
  device_->fail_copies = 1;
  EXPECT_FALSE(gpu->BindSlot(2, ForkOf{0}, {Warm(1)}).ok());
  for (const int32_t slot : {1, 2}) {  // neither has a sequence to continue
    EXPECT_EQ(gpu->Submit({{{slot, 8, {1}, RowOutput::kLast}}}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(SnapshotOf(*gpu, 0), snapshot);

  SamplingParams penalties = Warm(1);
  penalties.repetition_penalty = 1.5F;
  const std::vector<TokenUse> had = {{1, 0}};
  device_->fail_copies = 1;  // the copy of the parameters
  EXPECT_THAT(gpu->BindSlot(3, NewSequence(), {penalties, 0, had}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("state of a sequence: no copy")));
}

TEST_F(GpuRunnerEdgeTest, AFailedStepDoesNotAffectTheOneInFlight) {
  const auto gpu = Gpu();
  const std::vector<TokenId> prompt = RandomText(5);
  const std::vector<SampledToken> expected = Generate(*gpu, 0, prompt, 1, Warm(1));
  Bind(*gpu, 0, Warm(1));
  const auto first = gpu->Submit({{{0, 0, prompt, RowOutput::kLast}}});
  ASSERT_TRUE(first.ok());
  device_->fail_copies = 1;
  EXPECT_FALSE(gpu->Submit({{{1, 0, {2}, RowOutput::kLast}}}).ok());
  const auto output = Collect(*gpu, *first);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_TRUE(Same(output->sampled, expected));
}

TEST_F(GpuRunnerEdgeTest, ALostDeviceIsUnavailableWhereverItShowsAndStaysSo) {
  const auto gpu = Gpu();
  Bind(*gpu, 0, Greedy());
  const auto first = gpu->Submit({{{0, 0, {1, 2}, RowOutput::kLast}}});
  const auto second = gpu->Submit({{{0, 2, {kLastSampled}, RowOutput::kLast}}});
  ASSERT_TRUE(first.ok() && second.ok());
  device_->lost = true;
  for (const auto& ticket : {first, second}) {
    EXPECT_THAT(Collect(*gpu, *ticket), StatusIs(absl::StatusCode::kUnavailable,
                                                 HasSubstr("cuda:0 (a test's CPU) is lost")));
  }
  for (int32_t slot = 1; slot < 4; ++slot) {
    const absl::Status submitted = gpu->Submit({{{slot, 0, {1}, RowOutput::kLast}}}).status();
    EXPECT_EQ(submitted.code(), absl::StatusCode::kUnavailable) << submitted;
  }
}

TEST_F(GpuRunnerEdgeTest, LoadingComputesProductsOfEverySizeThatStepsUse) {
  for (const int64_t max_seq_len : {0, 7}) {  // with 7 a step of many tokens has several chunks
    config_.max_seq_len = max_seq_len;
    DrawWeights();
    const ProductLog log;
    const auto gpu = Gpu();
    // The rows of steps of single tokens, of texts to score (powers of 2), and of steps with chunks
    // without and with rows of one token.
    for (const int64_t rows : {1, 2, 4, 5, 16, 24, 28}) {
      // Every layer has four products, and the head is one.
      EXPECT_GE(std::count(log.rows().begin(), log.rows().end(), rows), 4 * config_.n_layers + 1)
          << rows;
    }
  }
}

// The nodes of a step's graph limit the speed of small batches on a GPU (tests/gpu/README.md).
// There a product may include bias and activation, which leaves seven nodes a layer.
TEST_F(GpuRunnerEdgeTest, ADecodeStepHasEightNodesALayerAndFourMore) {
  // The launches are embedding, last norm and sampler, and in each layer two norms, the mixer,
  // and bias with activation.
  ExpectDecodeStep({4, 3}, {4, 1});
}

// Both kinds launch two norms, two token shifts, the mixer and the activation in each layer. wkv4
// also launches the feed-forward's gate. Its products are r, k, v, out, and three of the
// feed-forward. wkv7 also launches the functions between the two products of w, a and g, and a copy
// or mix of the values. From the second layer on, the mix needs two products. The other launches
// are embedding, its norm, last norm and sampler.
TEST_F(GpuRunnerEdgeTest, ADecodeStepOfRwkvHasTheNodesOfItsParts) {
  UseMixer(ExampleMixer(MixerKind::kWkv4, 1), &config_);
  ExpectDecodeStep({7, 4}, {7, 1});
  UseMixer(ExampleMixer(MixerKind::kWkv7, 1), &config_);
  ExpectDecodeStep({8, 4}, {12, 1, 2});
}

// Norms quantize their results. The other operands are quantized by one launch each: the mixer's
// output, the feed-forward's activations and the head's vectors; with a token shift all inputs of
// the mixer together, and each input of the feed-forward.
TEST_F(GpuRunnerEdgeTest, AQuantizedDecodeStepHasNineNodesALayerAndFiveMore) {
  const NetworkConfig config = config_;
  for (const Number format : QuantizedFormats()) {
    format_ = format;
    config_ = config;
    ExpectDecodeStep({9, 5}, {});
    UseMixer(ExampleMixer(MixerKind::kWkv4, 1), &config_);
    ExpectDecodeStep({18, 6}, {});
    UseMixer(ExampleMixer(MixerKind::kWkv7, 1), &config_);
    ExpectDecodeStep({23, 6, 2}, {});
  }
}

TEST_F(GpuRunnerEdgeTest, ADecodeStepOfFewRowsInBf16ComputesItsProductsByOurKernel) {
  format_ = Number::kBf16;
  config_.d_model = 16;  // a row of 16-bit numbers begins at a multiple of 16 bytes
  config_.d_ff = 24;
  DrawWeights();
  const StepWork work = WorkOfADecodeStep();
  // The launches are embedding, last norm, head and sampler, and in each layer two norms, the
  // mixer, four products, and bias with activation, which the emulated device does by itself.
  EXPECT_EQ(work.launches, 8 * config_.n_layers + 4);
  EXPECT_TRUE(work.products.empty());
}

TEST_F(GpuRunnerEdgeTest, LoadingMakesTheGraphOfEveryShape) {
  const auto gpu = Gpu();
  EXPECT_EQ(device_->captures, 6);  // 1, 2, 4, 5 rows; up to 24 tokens of chunks with 0 or 4 rows
  Generate(*gpu, 0, RandomText(3), 3, Greedy());
  EXPECT_EQ(device_->captures, 6);
  options_.graphs = false;
  EXPECT_EQ(Generate(*Gpu(), 0, RandomText(3), 3, Greedy()).size(), 3U);
  EXPECT_EQ(device_->captures, 6);
}

TEST_F(GpuRunnerEdgeTest, SubmitReturnsWhileTheDeviceWorks) {
  const auto gpu = Gpu();
  Bind(*gpu, 0, Greedy());
  Step(*gpu, {{{0, 0, {1}, RowOutput::kLast}}});
  device_->late = 0;
  const auto first = gpu->Submit({{{0, 1, {kLastSampled}, RowOutput::kLast}}});
  const auto second = gpu->Submit({{{0, 2, {kLastSampled}, RowOutput::kLast}}});
  EXPECT_EQ(device_->late, 10);  // event, copy, graph, copy, event; twice
  EXPECT_TRUE(Collect(*gpu, *first).ok());
  EXPECT_TRUE(Collect(*gpu, *second).ok());
}

TEST_F(GpuRunnerEdgeTest, AnEmptyStepSucceeds) {
  const auto gpu = Gpu();
  const StepOutput output = Step(*gpu, {});
  EXPECT_TRUE(output.sampled.empty() && output.scored.empty());
}

TEST_F(GpuRunnerEdgeTest, DecodeStepsAllocateNothingOnTheDevice) {
  // On the emulated device LibTorch's products of 16-bit numbers allocate.
  std::vector<Number> formats = QuantizedFormats();
  formats.push_back(Number::kFp32);
  for (const NetworkCase& network : DecoderCases()) {
    SCOPED_TRACE(network.name);
    config_ = network.config;
    DrawWeights();
    for (const Number format : formats) {
      format_ = format;
      const auto gpu = Gpu();
      for (const int32_t slot : {0, 2}) Generate(*gpu, slot, {1, 2, 3}, 2, Greedy());
      const CountingAllocator allocator;
      Step(*gpu, {{{0, 4, {1}, RowOutput::kLast}, {2, 4, {kLastSampled}, RowOutput::kLast}}});
      EXPECT_EQ(allocator.count(), 0);
      const at::Tensor seen = at::empty({1}, at::kFloat);  // checks that the allocator counts
      EXPECT_EQ(allocator.count(), 1);
    }
  }
}

TEST_F(GpuRunnerEdgeTest, AWeightThatTheFormatCannotHoldIsDataLoss) {
  DrawWeights();
  tensors_["layers.1.ffn.up.weight"].data_ptr<float>()[7] = 1e6F;
  format_ = Number::kFp16;
  EXPECT_THAT(TryGpu(std::make_unique<HostQueue>()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("layers.1.ffn.up")));
  tensors_.erase("norm.bias");
  format_ = Number::kFp32;
  EXPECT_EQ(TryGpu(std::make_unique<HostQueue>()).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(GpuRunnerEdgeTest, SixteenBitWeightsTakeHalfTheMemoryAndATiedHeadNone) {
  config_.d_model = 40;
  config_.d_ff = 72;
  config_.vocab_size = 256;
  config_.head_bias = false;
  const auto weight_bytes = [this] {
    DrawWeights();
    return Gpu()->info().weight_bytes;
  };
  const int64_t fp32 = weight_bytes();
  format_ = Number::kBf16;
  const double ratio = static_cast<double>(weight_bytes()) / static_cast<double>(fp32);
  EXPECT_GT(ratio, 0.5);
  EXPECT_LT(ratio, 0.55);
  format_ = Number::kFp32;
  config_.tie_embeddings = true;
  EXPECT_EQ(fp32 - weight_bytes(), config_.vocab_size * config_.d_model * int64_t{sizeof(float)});
}

TEST_F(GpuRunnerEdgeTest, MoreSlotsThanALaunchHasRowsAreRefused) {
  DrawWeights();
  options_.slots = 65536;
  options_.max_step_tokens = options_.slots;
  EXPECT_THAT(TryGpu(std::make_unique<HostQueue>()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 65535")));
}

// On a device with 99 KiB of shared memory a block, a wide filter, for example, needs too much.
TEST_F(GpuRunnerEdgeTest, AModelThatNeedsMoreSharedMemoryThanTheDeviceHasIsRefusedAtLoad) {
  config_.mixer.kind = MixerKind::kAftConv;
  config_.mixer.heads = 2;
  DrawWeights();
  EXPECT_TRUE(TryGpu(MakeTestQueue(device_)).ok());
  cuda_on_cpu::SetSharedLimit(4 << 10);
  const absl::Status status = TryGpu(MakeTestQueue(device_)).status();
  cuda_on_cpu::SetSharedLimit(cuda_on_cpu::kMostShared);
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("Conv"), HasSubstr("shared memory")));
}

TEST_F(GpuRunnerEdgeTest, ReportsTheModelAndTheDevice) {
  format_ = Number::kBf16;
  const auto gpu = Gpu();
  const ModelInfo& info = gpu->info();
  EXPECT_EQ(info.architecture, "aft_local");
  EXPECT_EQ(info.vocab_size, 40);
  EXPECT_EQ(info.parameters, CountParameters(config_));
  EXPECT_EQ(info.weight_format, "bf16");
  EXPECT_EQ(info.device, "cuda:0 (a test's CPU)");
  EXPECT_EQ(info.state_bytes, Cpu()->info().state_bytes);
  const DeviceStats* stats = gpu->device_stats();
  ASSERT_NE(stats, nullptr);
  EXPECT_EQ(stats->memory_total, HostQueue::kTotalBytes);
  EXPECT_EQ(stats->memory_used, 0);
  Step(*gpu, {{{0, 0, {1}, RowOutput::kLast}}});
  EXPECT_EQ(stats->step_seconds, 0.5);
}

class GpuEncoderEdgeTest : public RunnerPairFixture {
 protected:
  GpuEncoderEdgeTest() {
    config_.architecture = Architecture::kEncoder;
    config_.mixer.causal = false;
    DrawWeights();
  }
};

TEST_F(GpuEncoderEdgeTest, AFailedCallIsInternalAndTheNextOneWorks) {
  const auto gpu = GpuEncoder();
  EXPECT_EQ(gpu->info().device, "cuda:0 (a test's CPU)");
  const std::vector<std::vector<TokenId>> texts = {RandomText(5), RandomText(7)};
  const std::vector<float> expected = Encode(*gpu, texts);
  EXPECT_EQ(gpu->device_stats()->step_seconds, 0.5);
  EXPECT_FALSE(gpu->device_stats()->step_was_graph);
  device_->fail_copies = 1;
  EXPECT_THAT(gpu->Encode(TextInputs(texts)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("no copy today")));
  EXPECT_EQ(Encode(*gpu, texts), expected);
}

TEST_F(GpuEncoderEdgeTest, ALostDeviceIsUnavailable) {
  const auto gpu = GpuEncoder();
  device_->lost = true;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(gpu->Encode(TextInputs({RandomText(5)})).status().code(),
              absl::StatusCode::kUnavailable);
  }
}

TEST_F(GpuEncoderEdgeTest, IdsAndVectorsAreTwoRunsOfOneStep) {
  const auto gpu = GpuEncoder();
  const std::vector<EncoderInput> inputs = {
      {RandomText(5)}, {.vectors = random_.Normals(7 * config_.d_model)}, {RandomText(3)}};
  EXPECT_EQ(Run(*gpu, inputs).size(), static_cast<size_t>(15 * config_.d_model));
  EXPECT_EQ(gpu->device_stats()->step_seconds, 2 * 0.5);
  Run(*gpu, {inputs[0]});
  EXPECT_EQ(gpu->device_stats()->step_seconds, 0.5);
}

TEST_F(GpuEncoderEdgeTest, AFilterThatIsTooLargeIsRefused) {
  config_.architecture = Architecture::kMixer;
  config_.vocab_size = config_.d_ff = 0;
  config_.n_layers = 1;
  config_.mixer.kind = MixerKind::kAftConv;
  config_.mixer.grid = true;
  config_.mixer.heads = 1;
  config_.mixer.window = 255;
  DrawWeights();
  std::unique_ptr<GpuQueue> queue = MakeTestQueue(device_);
  auto network = GpuModel(*queue);
  ASSERT_TRUE(network.ok()) << network.status();
  EXPECT_THAT(GpuEncoderRunner::Create(std::move(queue), *std::move(network), {1, 8}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("mixer.window: a 2-D filter of 255 taps is too large for a GPU")));
}

TEST_F(GpuEncoderEdgeTest, BatchesThatDoNotFitAreRefused) {
  std::unique_ptr<GpuQueue> queue = MakeTestQueue(device_);
  auto network = GpuModel(*queue);
  ASSERT_TRUE(network.ok()) << network.status();
  device_->used = HostQueue::kTotalBytes;
  EXPECT_THAT(
      GpuEncoderRunner::Create(std::move(queue), *std::move(network), {kSlots, kStepTokens}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("batches of 24 tokens")));
}

TEST_F(GpuEncoderEdgeTest, LoadingComputesProductsOfEverySize) {
  for (const int64_t max_seq_len : {0, 7}) {
    config_.max_seq_len = max_seq_len;
    const ProductLog log;
    const auto gpu = GpuEncoder();
    for (const int64_t rows : {1, 2, 4, 8, 16, 24}) {
      EXPECT_GE(std::count(log.rows().begin(), log.rows().end(), rows), 4 * config_.n_layers)
          << rows;
    }
  }
}

}  // namespace
}  // namespace aft
