// Tests of what a GPU limits: positions, widths, the shared memory of a block, and memory.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/api/sampling_params.h"
#include "model/config/formats.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"
#include "model/gpu/gpu_encoder_runner.h"
#include "model/gpu/gpu_linear.h"
#include "model/kernels/cuda/types.h"
#include "model/runtime/snapshot.h"
#include "tests/gpu_model/runner_pair.h"
#include "tests/support/cuda_on_cpu/host_queue.h"
#include "tests/support/cuda_on_cpu/threads.h"
#include "tests/support/formats.h"
#include "tests/support/mixer_reference.h"
#include "tests/support/status_matchers.h"

namespace aft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class GpuLimitsTest : public RunnerPairFixture {
 protected:
  ~GpuLimitsTest() override { cuda_on_cpu::SetSharedLimit(cuda_on_cpu::kMostShared); }

  // Emulates a device of compute capability 8.6, 8.9 or 12.0.
  static void UseSmallBlocks() { cuda_on_cpu::SetSharedLimit(size_t{99} << 10); }
};

// The runner warms up with chunks for all slots, which may hold fewer tokens than a step.
TEST_F(GpuLimitsTest, AStepMayHoldMoreTokensThanASlot) {
  config_.max_seq_len = 7;
  options_.slots = 1;
  options_.max_step_tokens = 24;
  DrawWeights();
  const auto cpu = Cpu();
  const auto gpu = Gpu();
  const std::vector<TokenId> text = RandomText(5);
  ExpectNear(Generate(*gpu, 0, text, 2, Greedy()), Generate(*cpu, 0, text, 2, Greedy()));
}

TEST_F(GpuLimitsTest, PositionsThatKernelsCannotCountAreRefusedAndTheLastOnesComputed) {
  constexpr int64_t kEnd = kernels::cuda::kMaxSequenceTokens;
  for (const MixerConfig& mixer : {MixerConfig{.window = 5},
                                   {.window = 5, .prefix_block = (1 << 29) + 3},
                                   {.kind = MixerKind::kBlockLocal, .heads = 2, .block_size = 4}}) {
    config_.mixer = mixer;
    DrawWeights();
    const auto cpu = Cpu();
    const auto gpu = Gpu();
    EXPECT_EQ(gpu->info().max_seq_len, kEnd);
    Generate(*gpu, 0, RandomText(9), 2, Greedy());
    std::string snapshot = SnapshotOf(*gpu, 0);
    const auto move_to = [&snapshot](int64_t position) {  // the last field of the header
      std::memcpy(snapshot.data() + SnapshotHeaderBytes() - 8, &position, 8);
      SealSnapshot(&snapshot);
    };
    move_to(int64_t{1} << 31);
    EXPECT_THAT(gpu->BindSlot(1, snapshot, {Greedy()}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("position 2147483648 is beyond max_seq_len 1073741824")));
    move_to(kEnd - 3);
    const StepInput prompt = {{{1, kEnd - 3, {1, 2}, RowOutput::kLast}}};
    const StepInput last = {{{1, kEnd - 1, {3}, RowOutput::kLast}}};
    for (ModelRunner* const runner : std::vector<ModelRunner*>{cpu.get(), gpu.get()}) {
      EXPECT_EQ(Bind(*runner, 1, snapshot, {Greedy()}), kEnd - 3);
    }
    ExpectNear(Step(*gpu, prompt), Step(*cpu, prompt));
    ExpectNear(Step(*gpu, last), Step(*cpu, last));
    EXPECT_THAT(gpu->Submit({{{1, kEnd, {1}, RowOutput::kLast}}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is beyond max_seq_len")));
  }
  ExpectTheSameTokens();
}

TEST_F(GpuLimitsTest, TheWidestImageFitsIntoTheBlocksOfTheDevice) {
  config_.architecture = Architecture::kMixer;
  config_.vocab_size = config_.d_ff = 0;
  config_.n_layers = 1;
  config_.mixer.kind = MixerKind::kAftConv;
  config_.mixer.causal = false;
  config_.mixer.grid = true;
  config_.mixer.window = 63;
  options_.max_step_tokens = 400;
  UseSmallBlocks();
  const auto gpu = GpuEncoder();
  const int64_t widest = gpu->info().max_image_width;
  EXPECT_GT(widest, 250);
  EXPECT_LT(widest, 400);
  const int64_t numbers = widest * config_.d_model;
  const std::vector<EncoderInput> image = {
      {.vectors = random_.Normals(numbers), .image_width = widest}};
  EXPECT_EQ(Run(*gpu, image).size(), static_cast<size_t>(numbers));
}

TEST_F(GpuLimitsTest, KernelsThatNeedLessServeADeviceWithSmallBlocks) {
  UseSmallBlocks();
  config_.n_layers = 1;
  for (const MixerConfig& mixer : {MixerConfig{.window = 130},
                                   {.kind = MixerKind::kAftConv, .window = 200, .heads = 8},
                                   {.kind = MixerKind::kDotProduct, .heads = 1}}) {
    config_.mixer = mixer;
    config_.d_model = StateGrows(mixer) ? 128 : 8;
    config_.max_seq_len = StateGrows(mixer) ? 40 : 0;
    DrawWeights();
    if (mixer.kind == MixerKind::kAftLocal) {  // look-ahead needs more for wide biases
      tensors_.at("layers.0.mixer.w.band").fill_(30);
    }
    const std::vector<TokenId> prompt = RandomText(20);
    ExpectNear(Generate(*Gpu(), 0, prompt, 3, Greedy()), Generate(*Cpu(), 0, prompt, 3, Greedy()));
  }
  ExpectTheSameTokens();
}

TEST_F(GpuLimitsTest, AFilterWithMoreTapsThanABlockHoldsIsRefusedForItsSharedMemory) {
  config_.n_layers = 1;
  config_.mixer = {.kind = MixerKind::kAftConv, .window = 20'001, .heads = 1};
  EXPECT_THAT(TryGpu(MakeTestQueue(device_)),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("ConvPrefill: a block needs more shared memory")));
}

TEST_F(GpuLimitsTest, VectorsTooWideForANormAreRefusedBeforeAWeightIsRead) {
  DrawWeights();
  config_.d_model = 8193;  // the weights are of another width, which would be DATA_LOSS
  EXPECT_THAT(TryGpu(std::make_unique<HostQueue>()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("d_model: at most 8192 on a GPU, got 8193")));
}

// The kernels of these mixers have no workspace, which is checked later.
TEST_F(GpuLimitsTest, WeightsAndActivationsAreCountedToTheByteBeforeTheyAreAllocated) {
  config_.max_seq_len = 40;
  const MixerConfig attention = ExampleMixer(MixerKind::kDotProduct, 40);
  const MixerConfig wkv7 = ExampleMixer(MixerKind::kWkv7, 40);
  MixerConfig wide = wkv7;  // the ranks together are wider than the six inputs
  wide.decay_rank = wide.rate_rank = wide.value_rank = wide.gate_rank = 5 * config_.d_model;
  for (const auto& [mixer, tied] : std::vector<std::pair<MixerConfig, bool>>{
           {attention, false}, {attention, true}, {wkv7, false}, {wide, false}}) {
    UseMixer(mixer, &config_);
    config_.tie_embeddings = config_.head_bias = tied;
    DrawWeights();
    for (const Number format : FormatsThat([](const FormatSpec& spec) { return spec.on_gpu; })) {
      SCOPED_TRACE(testing::Message() << MixerKindName(mixer.kind) << " " << mixer.gate_rank
                                      << ", tied " << tied << " " << NumberName(format));
      format_ = format;
      HostQueue large;
      const auto network = GpuModel(large);
      ASSERT_TRUE(network.ok()) << network.status();
      int64_t bytes = (*network)->workspace_bytes();
      for (const TensorSpec& spec : ExpectedTensors(config_)) {
        const bool matrix = spec.role == TensorRole::kMatrix;
        bytes += spec.count() * NumberBytes(matrix ? format : Number::kFp32);
      }
      if (tied && !IsQuantized(format)) {  // the head is a copy with columns for its bias
        bytes += config_.vocab_size * (config_.d_model + kBiasColumns) * NumberBytes(format);
      }
      HostQueue enough(bytes);
      EXPECT_EQ(GpuModel(enough).status(), absl::OkStatus());
      HostQueue small(bytes - 1);
      EXPECT_EQ(GpuModel(small).status().code(), absl::StatusCode::kResourceExhausted);
    }
  }
}

// A checkpoint's table of pairs or its factors may be far larger or smaller than the band that the
// device gets of them.
TEST_F(GpuLimitsTest, PositionBiasesAreCountedAsTheBandsThatTheDeviceHolds) {
  config_.n_layers = 1;
  config_.max_seq_len = 640;
  MixerConfig local;
  local.window = 4;
  local.band_rows = 640;
  local.bias = BiasForm::kFull;
  MixerConfig both_ways;
  both_ways.kind = MixerKind::kAftFull;
  both_ways.band_rows = 640;
  both_ways.bias = BiasForm::kFull;
  both_ways.causal = false;
  MixerConfig factors = both_ways;
  factors.bias = BiasForm::kFactors;
  factors.bias_rank = 2;
  factors.causal = true;
  for (const MixerConfig& mixer : {local, both_ways, factors}) {
    SCOPED_TRACE(testing::Message() << MixerKindName(mixer.kind) << ", causal " << mixer.causal);
    config_.architecture = mixer.causal ? Architecture::kDecoderLm : Architecture::kEncoder;
    config_.mixer = mixer;
    DrawWeights();
    HostQueue large;
    const auto network = GpuModel(large);
    ASSERT_TRUE(network.ok()) << network.status();
    HostQueue small(1);
    EXPECT_THAT(GpuModel(small),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr(absl::StrFormat(
                             "weights %.1f MiB",
                             static_cast<double>((*network)->weight_bytes()) / (1 << 20)))));
  }
}

// The memory plan of the server counts this memory of the machine.
TEST_F(GpuLimitsTest, PinnedBuffersAreReported) {
  EXPECT_GT(Gpu()->info().memory_bytes,
            options_.slots * kMaxLogitRules * int64_t{sizeof(LogitRule)});
  config_.architecture = Architecture::kEncoder;
  config_.mixer.causal = false;
  config_.vocabulary_head = true;
  config_.vocab_size = 1 << 14;
  DrawWeights();
  EXPECT_GE(GpuEncoder()->info().memory_bytes, options_.max_step_tokens * 4 * (1 << 14));
}

TEST_F(GpuLimitsTest, AnEncoderLeavesMemoryForLibraries) {
  config_.architecture = Architecture::kEncoder;
  config_.mixer.causal = false;
  DrawWeights();
  const auto create = [&](int64_t free_mib) -> absl::Status {
    auto queue = std::make_unique<HostQueue>(free_mib << 20);
    auto network = GpuModel(*queue);
    if (!network.ok()) return network.status();
    return GpuEncoderRunner::Create(std::move(queue), *std::move(network),
                                    {options_.slots, options_.max_step_tokens})
        .status();
  };
  EXPECT_THAT(create(100), StatusIs(absl::StatusCode::kResourceExhausted,
                                    HasSubstr("kept for libraries 256.0 MiB")));
  EXPECT_EQ(create(300), absl::OkStatus());
}

TEST_F(GpuLimitsTest, TheErrorSaysHowMuchMemoryEachPartNeeds) {
  DrawWeights();
  const auto lacks = [](auto... parts) {
    return StatusIs(absl::StatusCode::kResourceExhausted, AllOf(HasSubstr(parts)...));
  };
  EXPECT_THAT(TryGpu(std::make_unique<HostQueue>(10 << 10)),
              lacks("cuda:0", "0.0 MiB of 1024.0 MiB free", "weights ", "activations of 28 tokens ",
                    "logits of 28 tokens "));
  const int64_t mib = int64_t{1} << 20;
  // The decoder fits, but not with the memory that is kept for libraries.
  EXPECT_THAT(TryGpu(std::make_unique<HostQueue>(100 * mib)),
              lacks("5 slots of ", "kept for libraries 256.0 MiB", "of weights"));
  EXPECT_TRUE(TryGpu(std::make_unique<HostQueue>(300 * mib)).ok());
  EXPECT_THAT(TryGpu(std::make_unique<HostQueue>(100 * mib, 512 * mib)),
              lacks("kept for libraries 128.0 MiB"));
  EXPECT_THAT(TryGpu(std::make_unique<HostQueue>(100 * mib, 80 * 1024 * mib)),
              lacks("kept for libraries 1638.4 MiB"));

  config_.vocab_size = 1 << 14;
  DrawWeights();
  EXPECT_THAT(TryGpu(std::make_unique<HostQueue>(100 * mib)),
              lacks("token counts and rules 0.8 MiB"));

  config_.mixer = {.kind = MixerKind::kDotProduct};
  config_.max_seq_len = int64_t{1} << 30;
  DrawWeights();
  EXPECT_THAT(TryGpu(std::make_unique<HostQueue>()), lacks("(1073741824 tokens, max_seq_len)"));
}

// The memory has room for the weights, the activations and one of the two: the workspace or the
// look-ahead.
TEST_F(GpuLimitsTest, TheMixersWorkspaceAndLookAheadAreCountedBeforeTheyAreAllocated) {
  config_.mixer.window = 64;
  options_.slots = 1000;
  options_.max_step_tokens = 1000;
  HostQueue small(2 << 20);
  EXPECT_THAT(GpuModel(small),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("the mixers' workspace 0.4 MiB, look-ahead 1.8 MiB")));
}

TEST_F(GpuLimitsTest, LoadingLeavesMemoryForThePrefixCache) {
  options_.kept_bytes = int64_t{512} << 20;
  EXPECT_THAT(
      TryGpu(std::make_unique<HostQueue>(int64_t{700} << 20)),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the prefix cache 512.0 MiB")));
}

TEST_F(GpuLimitsTest, TheDevicesMemoryIsReadAgainAfterAThousandSteps) {
  const auto gpu = Gpu();
  device_->used = 5;
  for (int i = 0; i < 1024; ++i) Step(*gpu, {});
  EXPECT_EQ(gpu->device_stats()->memory_used, 5);
}

}  // namespace
}  // namespace aft
