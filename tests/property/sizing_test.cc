// Tests that the resources which aft-convert inspect reports are those that a runner takes.

#include <malloc.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/config/formats.h"
#include "model/convert/inspect.h"
#include "model/layers/mixer_layer.h"
#include "model/mixers/mixer.h"
#include "model/mixers/tables.h"
#include "model/network/cpu_network.h"
#include "model/network/weight_bytes.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/mixer_of.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using Json = nlohmann::ordered_json;

class SizingFixture : public RunnerFixture {
 protected:
  Json Sizes() {
    const absl::StatusOr<Json> inspection =
        Inspect(options_.checkpoint_dir, {.slots = options_.slots,
                                          .max_step_tokens = options_.max_step_tokens,
                                          .max_batch_tokens = options_.max_batch_tokens,
                                          .threads = options_.intra_op_threads});
    EXPECT_TRUE(inspection.ok()) << inspection.status();
    return inspection.value_or(Json());
  }
  Json Format() { return Sizes().at("sizing").at("formats").at(options_.weight_format); }
};

class EverySizeTest : public SizingFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  EverySizeTest() { config_ = GetParam().config; }
};

TEST_P(EverySizeTest, EqualsWhatTheRunnerReports) {
  Write();
  for (const char* format : {"fp32", "bf16", "int8"}) {
    options_.weight_format = format;
    const LoadedModel model = LoadBoth();
    const Json sizes = Sizes();
    const ModelInfo& info = model.runner != nullptr ? model.runner->info() : model.encoder->info();
    EXPECT_EQ(sizes.at("sizing").at("formats").at(format).at("weight_bytes"), info.weight_bytes)
        << format;
    EXPECT_EQ(sizes.at("sizing").at("formats").at(format).at("memory_bytes"), info.memory_bytes)
        << format;
    if (AftTableFloats(config_.mixer) > 0) {
      EXPECT_EQ(CountWeightBytes(config_, *NumberNamed(format)).total() + CountTableBytes(config_),
                info.weight_bytes);
    }
    EXPECT_EQ(sizes.at("state_bytes_per_sequence"), info.state_bytes);
    EXPECT_EQ(sizes.at("state_bytes_per_token"), info.state_bytes_per_token);
  }
}

INSTANTIATE_TEST_SUITE_P(Decoder, EverySizeTest, testing::ValuesIn(DecoderCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(FullDecode, EverySizeTest, testing::Values(FullDecodeCase()), CaseName);
INSTANTIATE_TEST_SUITE_P(Encoder, EverySizeTest, testing::ValuesIn(EncoderCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Mixer, EverySizeTest, testing::ValuesIn(BareMixerCases()), CaseName);

class MemoryTest : public SizingFixture {
 protected:
  // Bytes that are allocated on the heap, in large and small blocks.
  static int64_t Allocated() {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  }
  void ExpectWhatLoadingTakes() {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "AddressSanitizer's malloc does not count";
#endif
    constexpr int64_t kBuffers = 6;  // weights, states, scratch, activations, logits, quantized
    constexpr int64_t kHugePage = 2 << 20;  // buffers may be aligned and rounded up to these
    constexpr int64_t kRest = 2 << 20;
    Write();
    const int64_t expected = Format().at("memory_bytes");
    const int64_t slack = 2 * kBuffers * kHugePage + kRest;
    ASSERT_GT(expected, 2 * slack);
    LoadedModel first = LoadBoth();  // allocates what is made once per process
    first = {};
    const int64_t before = Allocated();
    const LoadedModel model = LoadBoth();
    SamplingParams penalties;
    penalties.repetition_penalty = 1.5F;
    for (int32_t slot = 0; model.runner != nullptr && slot < options_.slots; ++slot) {
      Bind(*model.runner, slot, penalties);
    }
    const int64_t taken = Allocated() - before;
    EXPECT_GE(taken, expected);
    EXPECT_LE(taken, expected + slack);
  }
};

TEST_F(MemoryTest, EqualsWhatALanguageModelTakes) {
  config_.d_model = 256;
  config_.d_ff = 1024;
  config_.mixer.window = 32;
  options_.slots = 256;
  options_.max_step_tokens = 2048;
  options_.intra_op_threads = 2;
  for (const char* format : {"fp32", "int8"}) {
    options_.weight_format = format;
    ExpectWhatLoadingTakes();
  }
}

// The counts for penalties are larger here than the slack of ExpectWhatLoadingTakes.
TEST_F(MemoryTest, EqualsWhatPenaltiesTake) {
  config_.vocab_size = 8192;
  config_.tokenizer = "chars";
  WriteBytes(options_.checkpoint_dir + "/chars.json", R"(["a"])");
  options_.slots = 1024;
  options_.max_step_tokens = 1024;
  options_.weight_format = "fp32";
  ExpectWhatLoadingTakes();
}

TEST_F(MemoryTest, SlotsGetWhatTheWorkspaceLeaves) {
  options_.weight_format = "fp32";
  Write();
  const auto workspace = [this](int threads) {
    options_.intra_op_threads = threads;
    return Format().at("workspace_bytes").get<int64_t>();
  };
  const int64_t slots = Format().at("memory_bytes").get<int64_t>() - workspace(1) -
                        Format().at("weight_bytes").get<int64_t>();
  const int64_t most = AvailableMemory() / 10 * 6;  // each of the two has room without the other
  options_.intra_op_threads = static_cast<int32_t>(most / (workspace(2) - workspace(1)));
  options_.slots = static_cast<int32_t>(most / (slots / options_.slots));
  options_.max_step_tokens = options_.slots;
  EXPECT_THAT(LoadModel(options_),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::HasSubstr(" slots of ")));
}

TEST_F(MemoryTest, EqualsWhatAnEncoderTakes) {
  config_.architecture = Architecture::kEncoder;
  config_.mixer.causal = false;
  config_.d_model = 512;
  config_.d_ff = 2048;
  options_.max_batch_tokens = 16384;
  options_.weight_format = "fp32";
  ExpectWhatLoadingTakes();
}

// Queries, keys and values that come one by one are packed in scratch memory.
TEST(ScratchTest, ABareMixerHasRoomForTheRowsOfItsSources) {
  NetworkConfig config;
  config.architecture = Architecture::kMixer;
  config.n_layers = 1;
  config.d_model = 40;
  config.mixer = MixerOf("aft_simple causal=false");
  const absl::StatusOr<std::unique_ptr<Mixer>> mixer = MakeMixer(config.mixer, 40, {});
  ASSERT_TRUE(mixer.ok()) << mixer.status();
  const int64_t rows = MixerLayer::SourceScratchFloats(config);
  EXPECT_LT((*mixer)->encode_scratch_floats(1), rows);
  EXPECT_GE(CpuNetwork::ScratchFloats(config, **mixer, /*max_tokens=*/1), rows);
}

class RateTest : public SizingFixture {};

TEST_F(RateTest, OneStepReadsTheWeightsOnceAndMovesEveryStreamsState) {
  Write();
  constexpr double kBandwidth = 1e9;
  const absl::StatusOr<Json> inspection =
      Inspect(options_.checkpoint_dir, {.slots = 32, .bandwidth = kBandwidth});
  ASSERT_TRUE(inspection.ok()) << inspection.status();
  const Json& sizing = inspection->at("sizing");
  const double moved = sizing.at("state_traffic_per_token");
  for (const auto& [format, size] : sizing.at("formats").items()) {
    EXPECT_EQ(size.at("tokens_per_second").size(), 3U);
    for (const auto& [streams, rate] : size.at("tokens_per_second").items()) {
      const double bytes = size.at("step_bytes").get<double>() + std::stod(streams) * moved;
      EXPECT_NEAR(rate.get<double>() * bytes, kBandwidth * std::stod(streams), 1) << format;
    }
  }
  const double flops = sizing.at("flops_per_token");
  const Json slow =
      *Inspect(options_.checkpoint_dir, {.slots = 4, .bandwidth = kBandwidth, .flops = 10 * flops});
  const Json& rates = slow.at("sizing").at("formats").at("int8").at("tokens_per_second");
  EXPECT_EQ(rates.size(), 2U);  // for 1 and for 4 streams
  for (const auto& [streams, rate] : rates.items()) EXPECT_DOUBLE_EQ(rate, 10) << streams;
}

// A state that does not grow costs the same in any context. A state that grows is read completely.
TEST_F(RateTest, TrafficGrowsWithTheContextWhereTheStateDoes) {
  const auto moved = [this](int64_t context) {
    const absl::StatusOr<Json> inspection = Inspect(options_.checkpoint_dir, {.context = context});
    EXPECT_TRUE(inspection.ok()) << inspection.status();
    return inspection->at("sizing").at("state_traffic_per_token").get<int64_t>();
  };
  Write();
  EXPECT_EQ(moved(10), moved(1000));
  config_.mixer = {.kind = MixerKind::kDotProduct};
  config_.max_seq_len = 500;
  Write();
  EXPECT_EQ(moved(200) - moved(100), 100 * 2 * config_.d_model * config_.n_layers * 4);
  EXPECT_EQ(moved(1000), moved(500));
}

// Floats of one layer of width 40: sums are read and written, rings are read, and one row of each
// ring is written. With look-ahead, a step reads an eighth of the rings and 15 rows of scratch, and
// one row comes and one goes.
TEST_F(RateTest, TrafficIsWhatTheKernelsReadAndWrite) {
  const struct {
    MixerConfig mixer;
    int64_t floats;
  } cases[] = {
      {{.window = 5}, 2 * 120 + 2 * 4 * 40 + 2 * 40},
      {{.window = 5, .prefix_block = 16}, 2 * 240 + 2 * 4 * 40 + 2 * 40},
      {{.window = 32}, 2 * 120 + 2 * 31 * 40 / 8 + 15 * 40 + 2 * 2 * 40},
      {{.kind = MixerKind::kAftSimple}, 2 * 120},
      {{.kind = MixerKind::kAftConv, .window = 4, .heads = 2}, 2 * 44 + 3 * 42 + 42},
      // The first token, keys and values: blocks of keys are padded to 32.
      {{.kind = MixerKind::kBlockLocal, .heads = 2, .block_size = 8},
       (2 * 40 + 2 * 32 * 40 + 2 * 8 * 40) * 3 / 4},
  };
  for (const auto& [mixer, floats] : cases) {
    config_.mixer = mixer;
    Write();
    EXPECT_EQ(Sizes().at("sizing").at("state_traffic_per_token"), config_.n_layers * floats * 4)
        << MixerKindName(mixer.kind) << " " << mixer.window;
  }
}

TEST_F(RateTest, OperationsAreTwoForEachWeightAndEachFloatOfState) {
  const int64_t layers = 3 * (3 * 40 * 40 + 40 * 40 + 2 * 40 * 72);
  const int64_t head = 256 * 40;
  const int64_t state = 3 * (120 + 2 * 4 * 40);
  for (const bool tied : {false, true}) {
    config_.tie_embeddings = tied;
    Write();
    EXPECT_EQ(Sizes().at("sizing").at("flops_per_token"), 2 * (layers + head + state));
  }
  config_.tie_embeddings = false;
  config_.architecture = Architecture::kEncoder;
  Write();
  EXPECT_EQ(Sizes().at("sizing").at("flops_per_token"), 2 * layers);
}

TEST_F(RateTest, StatesBeyondAllBoundsAreRefused) {
  config_.mixer = {.kind = MixerKind::kDotProduct};
  config_.max_seq_len = std::numeric_limits<int32_t>::max();
  config_.d_model = 1000;
  Write();
  EXPECT_TRUE(Inspect(options_.checkpoint_dir, {.slots = 1}).ok());
  EXPECT_THAT(Inspect(options_.checkpoint_dir, {.slots = 1 << 20}),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::HasSubstr("slots: ")));
}

// Whether a layer keeps scratch depends on its tables: with a bias beyond kNarrowBias it keeps
// none.
TEST_F(RateTest, ScratchIsCountedLayerByLayer) {
  config_.mixer.window = 32;
  Write();
  const int64_t all = Sizes().at("scratch_bytes_per_sequence");
  tensors_.at("layers.1.mixer.w.band").fill_(30.0F);
  Rewrite();
  EXPECT_EQ(3 * Sizes().at("scratch_bytes_per_sequence").get<int64_t>(), 2 * all);
  EXPECT_GT(all, 0);
}

}  // namespace
}  // namespace aft
