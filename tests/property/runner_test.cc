// The whole runner: a random checkpoint on disk, loaded and served, against float64.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/runtime/load.h"
#include "tests/property/network_reference.h"
#include "tests/property/random_inputs.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using testing::HasSubstr;

class RunnerTest : public testing::Test {
 protected:
  RunnerTest() {
    options_.checkpoint_dir = folder_.path();
    options_.slots = 8;
    options_.max_step_tokens = 64;
    options_.intra_op_threads = 1;
    config_.vocab_size = 256;
    config_.d_model = 40;
    config_.n_layers = 3;
    config_.d_ff = 72;
    config_.mixer.window = 5;
  }

  void Write() {
    tensors_ = RandomTensors(config_, random_);
    const absl::Status status = WriteCheckpoint(options_.checkpoint_dir, config_, tensors_);
    ASSERT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<ModelRunner> Load() {
    absl::StatusOr<LoadedModel> model = LoadModel(options_);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? std::move(model->runner) : nullptr;
  }

  std::vector<TokenId> RandomPrompt(int64_t length) {
    std::vector<TokenId> prompt(static_cast<size_t>(length));
    for (TokenId& token : prompt) token = static_cast<TokenId>(random_.Below(config_.vocab_size));
    return prompt;
  }

  static SamplingParams Greedy() {
    SamplingParams params;
    params.temperature = 0;
    params.top_logprobs = 3;
    return params;
  }

  static StepOutput Step(ModelRunner& runner, const StepInput& input) {
    const absl::StatusOr<ModelRunner::Ticket> ticket = runner.Submit(input);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (!ticket.ok()) return {};
    absl::StatusOr<StepOutput> output = runner.Collect(*ticket);
    EXPECT_TRUE(output.ok()) << output.status();
    return output.ok() ? *std::move(output) : StepOutput();
  }

  // The prompt in chunks of `chunk` tokens, then single tokens: `count` of them, alone in the
  // batch.
  static std::vector<SampledToken> Generate(ModelRunner& runner, int32_t slot,
                                            const std::vector<TokenId>& prompt, int64_t count,
                                            const SamplingParams& params, size_t chunk) {
    runner.BindSlot(slot, params);
    std::vector<SampledToken> sampled;
    int64_t position = 0;
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      const size_t end = std::min(at + chunk, prompt.size());
      const RowOutput output = end == prompt.size() ? RowOutput::kLast : RowOutput::kNone;
      StepOutput step = Step(runner, {{{slot,
                                        position,
                                        {prompt.begin() + static_cast<int64_t>(at),
                                         prompt.begin() + static_cast<int64_t>(end)},
                                        output}}});
      position += static_cast<int64_t>(end - at);
      for (SampledToken& token : step.sampled) sampled.push_back(std::move(token));
    }
    while (static_cast<int64_t>(sampled.size()) < count) {
      StepOutput step = Step(runner, {{{slot, position++, {sampled.back().id}, RowOutput::kLast}}});
      if (step.sampled.empty()) break;
      sampled.push_back(std::move(step.sampled[0]));
    }
    return sampled;
  }

  static bool Same(const SampledToken& a, const SampledToken& b) {
    if (a.id != b.id || a.logprob != b.logprob || a.top.size() != b.top.size()) return false;
    for (size_t i = 0; i < a.top.size(); ++i) {
      if (a.top[i].id != b.top[i].id || a.top[i].logprob != b.top[i].logprob) return false;
    }
    return true;
  }

  static bool Same(const std::vector<SampledToken>& a, const std::vector<SampledToken>& b) {
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(),
                      [](const SampledToken& x, const SampledToken& y) { return Same(x, y); });
  }

  // Greedy generation against float64: every token where the margin is clear, every logprob.
  void ExpectEqualsReference() {
    Write();
    const std::unique_ptr<ModelRunner> runner = Load();
    ASSERT_NE(runner, nullptr);
    std::vector<TokenId> text = RandomPrompt(23);
    const std::vector<SampledToken> sampled = Generate(*runner, 3, text, 40, Greedy(), 9);
    ASSERT_EQ(sampled.size(), 40U);
    const size_t prompt = text.size();
    for (const SampledToken& token : sampled) text.push_back(token.id);
    const std::vector<std::vector<double>> logits = NetworkReference(config_, tensors_, text);
    for (size_t i = 0; i < sampled.size(); ++i) {
      const std::vector<double> logprobs = LogSoftmax(logits[prompt + i - 1]);
      const double best = *std::max_element(logprobs.begin(), logprobs.end());
      // The sampled token is the best one, or ties with it within the tolerance.
      EXPECT_NEAR(logprobs[static_cast<size_t>(sampled[i].id)], best, 1e-4);
      EXPECT_NEAR(sampled[i].logprob, best, 1e-4);
      ASSERT_EQ(sampled[i].top.size(), 3U);
      for (const TokenLogprob& top : sampled[i].top) {
        EXPECT_NEAR(top.logprob, logprobs[static_cast<size_t>(top.id)], 1e-4);
      }
    }
  }

  TestRandom random_;
  NetworkConfig config_;
  const TempFolder folder_;
  LoadOptions options_;
  TensorMap tensors_;
};

TEST_F(RunnerTest, AnOverflowStaysInItsOwnSequence) {
  Write();
  tensors_.at("embed.weight")[7].fill_(3e38);  // finite, but no norm of it is
  ASSERT_TRUE(WriteCheckpoint(options_.checkpoint_dir, config_, tensors_).ok());
  const std::unique_ptr<ModelRunner> runner = Load();
  ASSERT_NE(runner, nullptr);
  runner->BindSlot(0, Greedy());
  const StepOutput alone = Step(*runner, {{{0, 0, {1, 2, 3}, RowOutput::kLast}}});
  runner->BindSlot(0, Greedy());
  runner->BindSlot(1, Greedy());
  const StepOutput both =
      Step(*runner, {{{1, 0, {1, 7}, RowOutput::kLast}, {0, 0, {1, 2, 3}, RowOutput::kLast}}});
  ASSERT_EQ(both.sampled.size(), 2U);
  EXPECT_EQ(both.sampled[0].id, kNoToken);
  EXPECT_TRUE(Same(both.sampled[1], alone.sampled[0]));
}

TEST_F(RunnerTest, AftLocalEqualsFloat64) { ExpectEqualsReference(); }

TEST_F(RunnerTest, AftSimpleEqualsFloat64) {
  config_.mixer = {MixerKind::kAftSimple, 0, 0, 0};
  ExpectEqualsReference();
}

TEST_F(RunnerTest, PrefixBlocksAndTiedHeadEqualFloat64) {
  config_.mixer.prefix_block = 8;
  config_.tie_embeddings = true;
  ExpectEqualsReference();
}

TEST_F(RunnerTest, BandPerPositionEqualsFloat64) {
  config_.mixer.band_rows = 80;
  config_.max_seq_len = 80;
  ExpectEqualsReference();
}

TEST_F(RunnerTest, PromptChunksChangeNoBit) {
  config_.mixer.prefix_block = 16;
  Write();
  const std::unique_ptr<ModelRunner> runner = Load();
  ASSERT_NE(runner, nullptr);
  const std::vector<TokenId> prompt = RandomPrompt(50);
  const std::vector<SampledToken> whole = Generate(*runner, 0, prompt, 20, Greedy(), 64);
  for (const size_t chunk : {1U, 2U, 7U, 16U, 31U, 49U}) {
    EXPECT_TRUE(Same(Generate(*runner, 1, prompt, 20, Greedy(), chunk), whole)) << chunk;
  }
}

TEST_F(RunnerTest, BatchNeighboursAndThreadsChangeNoBit) {
  Write();
  const std::unique_ptr<ModelRunner> runner = Load();
  ASSERT_NE(runner, nullptr);
  constexpr int32_t kSequences = 8;
  constexpr int64_t kCount = 30;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params(kSequences, Greedy());
  std::vector<std::vector<SampledToken>> alone;
  for (int32_t i = 0; i < kSequences; ++i) {
    prompts.push_back(RandomPrompt(1 + random_.Below(7)));
    params[static_cast<size_t>(i)].temperature = static_cast<float>(i % 3);
    params[static_cast<size_t>(i)].seed = static_cast<uint64_t>(i);
    alone.push_back(
        Generate(*runner, 5, prompts.back(), kCount, params[static_cast<size_t>(i)], 64));
  }
  options_.intra_op_threads = 3;
  const std::unique_ptr<ModelRunner> threaded = Load();
  ASSERT_NE(threaded, nullptr);
  for (ModelRunner* batched : {runner.get(), threaded.get()}) {
    std::vector<std::vector<SampledToken>> together(kSequences);
    StepInput step;
    for (int32_t i = 0; i < kSequences; ++i) {
      const auto index = static_cast<size_t>(i);
      batched->BindSlot(i, params[index]);
      step.rows.push_back({i, 0, prompts[index], RowOutput::kLast});
    }
    for (int64_t n = 0; n < kCount; ++n) {
      StepOutput output = Step(*batched, step);
      ASSERT_EQ(output.sampled.size(), static_cast<size_t>(kSequences));
      for (size_t i = 0; i < kSequences; ++i) {
        StepRow& row = step.rows[i];
        row.first_position += static_cast<int64_t>(row.tokens.size());
        row.tokens = {output.sampled[i].id};
        together[i].push_back(std::move(output.sampled[i]));
      }
    }
    for (size_t i = 0; i < kSequences; ++i) EXPECT_TRUE(Same(together[i], alone[i])) << i;
  }
}

TEST_F(RunnerTest, RefusesStepsThatBreakTheRulesAndComputesNothing) {
  config_.max_seq_len = 20;
  Write();
  const std::unique_ptr<ModelRunner> runner = Load();
  ASSERT_NE(runner, nullptr);
  const auto refused = [&](StepInput input, const std::string& why) {
    const absl::Status status = runner->Submit(input).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  runner->BindSlot(0, Greedy());
  Step(*runner, {{{0, 0, {1, 2, 3}, RowOutput::kNone}}});
  refused({{{8, 0, {1}, RowOutput::kLast}}}, "row 0: slot 8 is out of range");
  refused({{{-1, 0, {1}, RowOutput::kLast}}}, "slot -1 is out of range");
  refused({{{0, 3, {1}, RowOutput::kLast}, {0, 4, {1}, RowOutput::kLast}}},
          "row 1: slot 0 occurs twice");
  refused({{{0, 3, {}, RowOutput::kLast}}}, "no tokens");
  refused({{{0, 3, {256}, RowOutput::kLast}}}, "token 256 is out of range");
  refused({{{0, 3, {-1}, RowOutput::kLast}}}, "token -1 is out of range");
  refused({{{0, 4, {1}, RowOutput::kLast}}}, "position 4, but slot 0 is at 3");
  refused({{{0, 3, RandomPrompt(18), RowOutput::kLast}}}, "position 20 is beyond max_seq_len 20");
  StepInput large;
  for (int32_t i = 0; i < 4; ++i) large.rows.push_back({i, 0, RandomPrompt(17), RowOutput::kNone});
  refused(large, "68 tokens in a step of at most 64");
  // Nothing of this has touched the sequence.
  const StepOutput after = Step(*runner, {{{0, 3, {4}, RowOutput::kLast}}});
  runner->BindSlot(1, Greedy());
  const StepOutput fresh = Step(*runner, {{{1, 0, {1, 2, 3, 4}, RowOutput::kLast}}});
  EXPECT_TRUE(Same(after.sampled, fresh.sampled));
}

TEST_F(RunnerTest, ReportsWhatTheServerMayKnow) {
  config_.mixer.prefix_block = 16;
  Write();
  const std::unique_ptr<ModelRunner> runner = Load();
  ASSERT_NE(runner, nullptr);
  const ModelInfo& info = runner->info();
  EXPECT_EQ(info.architecture, "aft_local");
  EXPECT_EQ(info.vocab_size, 256);
  EXPECT_EQ(info.max_seq_len, 0);
  EXPECT_EQ(info.parameters, CountParameters(config_));
  // Two prefixes of three vectors and a ring of four tokens, padded to 64 bytes: 3 layers.
  EXPECT_EQ(info.state_bytes, 3 * (((6 + 8) * 40 * 4 + 63) / 64 * 64));
  EXPECT_GE(info.weight_bytes, info.parameters * 4);
}

class LoadTest : public RunnerTest {
 protected:
  void ExpectRefused(absl::StatusCode code, const std::string& why) {
    const absl::Status status = LoadModel(options_).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
  void Rewrite() {
    const absl::Status status = WriteCheckpoint(options_.checkpoint_dir, config_, tensors_);
    ASSERT_TRUE(status.ok()) << status;
  }
};

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
  options_.intra_op_threads = -1;
  ExpectRefused(absl::StatusCode::kInvalidArgument, "intra_op_threads");
}

TEST_F(LoadTest, SaysWhatNeedsHowMuchMemory) {
  Write();
  options_.slots = 2'000'000'000;
  options_.max_step_tokens = 2'000'000'000;
  ExpectRefused(absl::StatusCode::kResourceExhausted, "2000000000 slots of ");
}

TEST_F(LoadTest, MissingFolderIsNotFound) {
  options_.checkpoint_dir += "/nowhere";
  ExpectRefused(absl::StatusCode::kNotFound, "nowhere");
}

}  // namespace
}  // namespace aft
