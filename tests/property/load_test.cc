// Tests loading a model: what it refuses, and with which messages.

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/cpus.h"
#include "base/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/config/config.h"
#include "model/config/formats.h"
#include "model/network/weight_bytes.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/shown_progress.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

// The CPUs that this process may run on.
std::vector<int> AllowedCpus() {
  cpu_set_t allowed;
  AFT_CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &allowed)) cpus.push_back(cpu);
  }
  return cpus;
}

class LoadTest : public RunnerFixture {
 protected:
  // ModelInfo::device of the model that is loaded with these options.
  std::string Device() {
    const LoadedModel model = LoadBoth();
    return (model.encoder != nullptr ? model.encoder->info() : model.runner->info()).device;
  }
  void ExpectRefused(absl::StatusCode code, const std::string& why) {
    EXPECT_THAT(LoadModel(options_), StatusIs(code, HasSubstr(why)));
  }
};

TEST_F(LoadTest, AModelIsARunnerOrAnEncoderAndItsTokenizer) {
  options_.max_batch_rows = options_.max_batch_tokens = 8;  // as few tokens as rows are allowed
  for (const bool encoder : {false, true}) {
    config_.architecture = encoder ? Architecture::kEncoder : Architecture::kDecoderLm;
    Write();
    const absl::StatusOr<LoadedModel> model = LoadModel(options_);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->encoder != nullptr, encoder);
    EXPECT_EQ(model->runner != nullptr, !encoder);
    EXPECT_NE(model->tokenizer, nullptr);
  }
}

TEST_F(LoadTest, ABareMixerIsAnEncoderWithoutATokenizer) {
  config_.architecture = Architecture::kMixer;
  config_.vocab_size = config_.d_ff = 0;
  config_.n_layers = 1;
  config_.tokenizer.clear();
  Write();
  const absl::StatusOr<LoadedModel> model = LoadModel(options_);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->runner, nullptr);
  EXPECT_EQ(model->tokenizer, nullptr);
  EXPECT_EQ(model->encoder->width(), config_.d_model);
  EXPECT_EQ(model->encoder->info().vocab_size, 0);
}

TEST_F(LoadTest, ShowsItsProgress) {
  Write();
  ShownProgress shown;
  options_.progress = &shown.progress;
  ASSERT_TRUE(LoadModel(options_).ok());
  shown.ExpectComplete();
}

TEST_F(LoadTest, WeightsAndNumberFormatsHaveFingerprintsOfTheirOwn) {
  std::set<uint64_t> fingerprints = {0};
  for (const bool encoder : {false, true}) {
    config_.architecture = encoder ? Architecture::kEncoder : Architecture::kDecoderLm;
    Write();
    for (const float weight : {0.0F, 1.0F}) {
      tensors_["layers.1.norm2.bias"][0] = weight;
      Rewrite();
      for (const char* format : {"fp32", "bf16", "int8"}) {
        options_.weight_format = format;
        const LoadedModel model = LoadBoth();
        const ModelInfo& info = encoder ? model.encoder->info() : model.runner->info();
        EXPECT_TRUE(fingerprints.insert(info.fingerprint).second) << encoder << weight << format;
      }
    }
  }
}

TEST_F(LoadTest, NamesEveryTensorThatDoesNotFit) {
  Write();
  tensors_["layers.1.norm2.bias"][0] = NAN;
  tensors_["layers.0.ffn.up.bias"] = tensors_["norm.bias"];
  tensors_["layers.2.mixer.qkv.bias"] = tensors_["layers.2.mixer.qkv.bias"].to(at::kDouble);
  tensors_["position.weight"] = tensors_["norm.bias"];
  tensors_.erase("head.bias");
  Rewrite();
  ExpectRefused(absl::StatusCode::kDataLoss, "model.safetensors: ");
  ExpectRefused(absl::StatusCode::kDataLoss,
                "layers.1.norm2.bias holds a value that is not finite");
  ExpectRefused(absl::StatusCode::kDataLoss,
                "layers.0.ffn.up.bias has shape [40], the config asks for [72]");
  ExpectRefused(absl::StatusCode::kDataLoss, "layers.2.mixer.qkv.bias is Double, not F32");
  ExpectRefused(absl::StatusCode::kDataLoss, "position.weight is not part of a network");
  ExpectRefused(absl::StatusCode::kDataLoss, "head.bias is missing");
}

TEST_F(LoadTest, NamesTheFirstOfManyTensorsThatDoNotFit) {
  Write();
  const TensorMap all = tensors_;
  tensors_ = {{"a\n" + std::string(1000, 'b'), all.at("norm.bias")}};
  Rewrite();
  const std::string message(LoadModel(options_).status().message());
  EXPECT_THAT(message, HasSubstr("a\\n" + std::string(78, 'b') + "... is not part of a network"));
  EXPECT_THAT(message, EndsWith(absl::StrCat(" is missing; and ", all.size() - 15, " more")));
}

TEST_F(LoadTest, NamesTheFileOfAnEncoder) {
  config_.architecture = Architecture::kEncoder;
  Write();
  tensors_["norm.bias"][0] = NAN;
  Rewrite();
  ExpectRefused(absl::StatusCode::kDataLoss,
                "model.safetensors: norm.bias holds a value that is not finite");
}

TEST_F(LoadTest, RefusesBadOptionsByName) {
  Write();
  options_.weight_format = "int4";
  ExpectRefused(absl::StatusCode::kInvalidArgument, "weight_format \"int4\"");
  options_.weight_format = "fp32";
  options_.slots = 0;
  ExpectRefused(absl::StatusCode::kInvalidArgument, "slots");
  options_.slots = 65;
  ExpectRefused(absl::StatusCode::kInvalidArgument, "max_step_tokens: 64 is less than slots, 65");
  options_.slots = 8;
  options_.max_batch_rows = 0;
  ExpectRefused(absl::StatusCode::kInvalidArgument, "max_batch_rows");
  options_.max_batch_rows = 5000;
  ExpectRefused(absl::StatusCode::kInvalidArgument, "max_batch_tokens: 4096 is less than max_b");
  options_.max_batch_rows = 8;
  options_.intra_op_threads = -1;
  ExpectRefused(absl::StatusCode::kInvalidArgument, "intra_op_threads");
  options_.intra_op_threads = 0;
  options_.cpus = "0-";
  ExpectRefused(absl::StatusCode::kInvalidArgument, "cpus: must be a list");
}

TEST_F(LoadTest, ThreadsRunOnTheCpusThatWereAskedFor) {
  const int last = AllowedCpus().back();
  options_.cpus = std::to_string(last);
  options_.intra_op_threads = 0;
  for (const bool encoder : {false, true}) {
    config_.architecture = encoder ? Architecture::kEncoder : Architecture::kDecoderLm;
    Write();
    const absl::StatusOr<LoadedModel> model = LoadModel(options_);
    ASSERT_TRUE(model.ok()) << model.status();
    const ModelInfo& info = encoder ? model->encoder->info() : model->runner->info();
    EXPECT_THAT(info.device, HasSubstr(", 1 thread"));
    std::thread([&] {  // the engine's thread
      encoder ? model->encoder->PrepareThread() : model->runner->PrepareThread();
      EXPECT_EQ(sched_getcpu(), last);
    })
        .join();
  }
}

TEST_F(LoadTest, WithoutANumberOfThreadsTheCpusDecide) {
  options_.intra_op_threads = 0;
  const int threads = std::max(AvailableCpus() - 1, 1);
  EXPECT_THAT(Device(),
              EndsWith(absl::StrCat(", ", threads, threads == 1 ? " thread)" : " threads)")));
  const std::vector<int> cpus = AllowedCpus();
  if (cpus.size() < 2) return;
  options_.cpus = absl::StrCat(cpus.front(), ",", cpus.back());
  EXPECT_THAT(Device(), EndsWith(", 2 threads)"));
}

// Three threads on one CPU are not faster than one. Where other programs disturbed every step of
// one thread, the model is measured again.
TEST_F(LoadTest, ThreadsAreMeasuredIfThatIsAskedFor) {
  options_.cpus = absl::StrCat(AllowedCpus().back());
  options_.intra_op_threads = 3;
  for (const bool encoder : {false, true}) {
    config_.architecture = encoder ? Architecture::kEncoder : Architecture::kDecoderLm;
    Write();
    options_.measure_threads = false;
    EXPECT_THAT(Device(), EndsWith(", 3 threads)"));
    options_.measure_threads = true;
    std::string measured;
    for (int i = 0; i < 20 && !absl::StrContains(measured, " below "); ++i) measured = Device();
    EXPECT_THAT(measured, HasSubstr(" below "));
  }
}

// The steps that are measured leave nothing behind, although they are more than a short model
// takes.
TEST_F(LoadTest, MeasuringThreadsChangesNoAnswer) {
  for (const int64_t longest : {3, 64}) {
    config_.max_seq_len = longest;
    const std::vector<TokenId> text = RandomText(2);
    for (const bool encoder : {false, true}) {
      config_.architecture = encoder ? Architecture::kEncoder : Architecture::kDecoderLm;
      options_.intra_op_threads = 1;
      options_.measure_threads = false;
      Write();
      const LoadedModel alone = LoadBoth();
      options_.intra_op_threads = 3;
      options_.measure_threads = true;
      const LoadedModel measured = LoadBoth();
      if (encoder) {
        EXPECT_EQ(Encode(*measured.encoder, {text}), Encode(*alone.encoder, {text}));
        EXPECT_THAT(measured.encoder->info().device, HasSubstr(" thread"));
        continue;
      }
      EXPECT_THAT(measured.runner->info().device, HasSubstr(" thread"));
      for (const int32_t slot : {0, 7}) {
        EXPECT_TRUE(Same(Generate(*measured.runner, slot, text, 2, Warm(5)),
                         Generate(*alone.runner, slot, text, 2, Warm(5))));
      }
    }
  }
}

TEST_F(LoadTest, RefusesDevicesByName) {
  Write();
  for (const char* device : {"", "gpu", "cuda", "cuda:", "cuda:-1", "cuda: 1", "cuda:1x"}) {
    options_.device = device;
    ExpectRefused(absl::StatusCode::kInvalidArgument, "must be \"cpu\" or \"cuda:N\"");
  }
  options_.device = "cpu";
  options_.weight_format = "fp16";
  ExpectRefused(absl::StatusCode::kInvalidArgument,
                "device \"cpu\" takes \"stored\", \"fp32\", \"bf16\", \"int8\"");
  options_.device = "cuda:0";
  options_.weight_format = "fp64";
  ExpectRefused(absl::StatusCode::kInvalidArgument,
                "device \"cuda:0\" takes \"stored\", \"fp32\", \"bf16\", \"fp16\", \"int8\"");
}

TEST_F(LoadTest, AGpuThatIsNotThereIsRefused) {
  Write();
  options_.device = "cuda:999";
  options_.weight_format = "bf16";
  const absl::Status status = LoadModel(options_).status();
  // The messages of a program without CUDA, with CUDA but no GPU, and with too few GPUs.
  EXPECT_THAT(std::string(status.message()),
              testing::AnyOf(HasSubstr("device: \"cuda:999\", but this program was built without"),
                             HasSubstr("no GPU"), HasSubstr("cuda:999: this machine has")));
}

// The file has other tensors, so an error that names none of them shows that they were not read.
TEST_F(LoadTest, WeightsThatCannotFitAreNotRead) {
  Write();
  const auto expect_refused = [this] {
    WriteBytes(options_.checkpoint_dir + "/config.json", FormatNetworkConfig(config_));
    ExpectRefused(absl::StatusCode::kResourceExhausted, "MiB of weights in fp32 and ");
  };
  config_.n_layers = 1024;
  config_.d_model = 1 << 16;
  config_.d_ff = 1 << 18;
  expect_refused();
  // Small factors of large tables: 2 GiB a layer.
  config_.architecture = Architecture::kEncoder;
  config_.d_model = config_.d_ff = 8;
  config_.max_seq_len = 1 << 14;
  config_.mixer = {.window = 1 << 14,
                   .band_rows = 1 << 14,
                   .causal = false,
                   .bias = BiasForm::kFactors,
                   .bias_rank = 1};
  expect_refused();
  // While a layer is folded, its table exists twice.
  const int64_t needed = CountWeightBytes(config_, *NumberNamed("fp32")).total() +
                         CountTableBytes(config_) * (config_.n_layers + 1) / config_.n_layers;
  ExpectRefused(absl::StatusCode::kResourceExhausted, ": " + Mebibytes(needed) + " of weights in ");
}

// Weights in bf16 take half of the memory that there is, and those of the layer in fp32 as much as
// all of it.
TEST_F(LoadTest, TheTensorsThatAreReadAtOnceMustFitToo) {
  Write();
  config_.n_layers = 1;
  config_.d_model = static_cast<int64_t>(std::sqrt(AvailableMemory() / 48));
  config_.d_ff = 4 * config_.d_model;
  if (config_.d_model > 1 << 16) GTEST_SKIP() << "no model is so large";
  WriteBytes(options_.checkpoint_dir + "/config.json", FormatNetworkConfig(config_));
  options_.weight_format = "bf16";
  ExpectRefused(absl::StatusCode::kResourceExhausted,
                " of weights in bf16 and " + Mebibytes(CountReadBytes(config_)) + " of tensors");
}

// The tensors of one layer, or those of the head, are in memory at once.
TEST(CountReadBytesTest, IsThatOfTheLargestGroup) {
  NetworkConfig config;
  config.d_model = 2;
  config.n_layers = 3;
  config.d_ff = 7;
  config.mixer.window = 4;
  config.vocab_size = 500;
  EXPECT_EQ(CountReadBytes(config), 4 * (500 * 2 + 500));
  config.vocab_size = 5;
  const int64_t norms = 2 * (2 + 2), mixer = (6 * 2 + 6) + 4 + (2 * 2 + 2);
  EXPECT_EQ(CountReadBytes(config), 4 * (norms + mixer + (7 * 2 + 7) + (2 * 7 + 2)));
}

// The counts for penalties are 8 bytes for each token of the vocabulary.
TEST_F(LoadTest, SaysWhatNeedsHowMuchMemory) {
  config_.vocab_size = 1 << 16;
  config_.tokenizer = "chars";
  WriteBytes(options_.checkpoint_dir + "/chars.json", R"(["a"])");
  Write();
  options_.slots = 2'000'000'000;
  options_.max_step_tokens = 2'000'000'000;
  ExpectRefused(absl::StatusCode::kResourceExhausted, "2000000000 slots of 0.5 MiB");
}

TEST_F(LoadTest, SaysHowMuchMemoryTheBatchesOfAnEncoderNeed) {
  config_.architecture = Architecture::kEncoder;
  Write();
  options_.max_batch_tokens = 2'000'000'000;
  ExpectRefused(absl::StatusCode::kResourceExhausted, "of workspace for 2000000000 tokens a batch");
}

TEST_F(LoadTest, GrowingStatesCountWithTheirFullSize) {
  config_.mixer = {.kind = MixerKind::kDotProduct};
  config_.max_seq_len = int64_t{1} << 30;
  Write();
  ExpectRefused(absl::StatusCode::kResourceExhausted, "(1073741824 tokens, max_seq_len)");
}

TEST_F(LoadTest, MissingFolderIsNotFound) {
  options_.checkpoint_dir += "/nowhere";
  ExpectRefused(absl::StatusCode::kNotFound, "nowhere");
}

}  // namespace
}  // namespace aft
