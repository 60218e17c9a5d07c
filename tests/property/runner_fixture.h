#ifndef AFT_TESTS_PROPERTY_RUNNER_FIXTURE_H_
#define AFT_TESTS_PROPERTY_RUNNER_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "model/api/load.h"
#include "model/checkpoint/checkpoint.h"
#include "tests/property/network_reference.h"
#include "tests/property/random_inputs.h"
#include "tests/property/runner_calls.h"
#include "tests/property/tested_runners.h"
#include "tests/support/temp_files.h"

namespace aft {

// A random checkpoint on disk, and runners of it on the device of this test program.
class RunnerFixture : public RunnerCalls {
 protected:
  RunnerFixture() {
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

  // Draws new weights.
  void Write() {
    tensors_ = RandomTensors(config_, random_);
    Rewrite();
  }
  void Rewrite() {
    const absl::Status status = WriteCheckpoint(options_.checkpoint_dir, config_, tensors_);
    ASSERT_TRUE(status.ok()) << status;
  }

  // On the device of this test program.
  std::unique_ptr<ModelRunner> Load() {
    absl::StatusOr<std::unique_ptr<ModelRunner>> runner = device_.load(options_, config_, tensors_);
    EXPECT_TRUE(runner.ok()) << runner.status();
    return runner.ok() ? *std::move(runner) : nullptr;
  }

  // The same tokens, computed in other company or from another cut.
  bool Same(const SampledToken& a, const SampledToken& b) const {
    if (device_.same_bits) return RunnerCalls::Same(a, b);
    const auto near = [this](float x, float y) {
      return std::abs(double{x} - double{y}) <= device_.log_probability;
    };
    return a.id == b.id && near(a.logprob, b.logprob) &&
           std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(),
                      [&](const TokenLogprob& x, const TokenLogprob& y) {
                        return near(x.logprob, y.logprob);
                      });
  }
  bool Same(const std::vector<SampledToken>& a, const std::vector<SampledToken>& b) const {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [this](const SampledToken& x, const SampledToken& y) { return Same(x, y); });
  }

  std::vector<TokenId> RandomPrompt(int64_t length) {
    std::vector<TokenId> prompt(static_cast<size_t>(length));
    for (TokenId& token : prompt) token = static_cast<TokenId>(random_.Below(config_.vocab_size));
    return prompt;
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
      StepRow row = {slot, position, Slice(prompt, at, end), output};
      StepOutput step = Step(runner, {{std::move(row)}});
      position += static_cast<int64_t>(end - at);
      for (SampledToken& token : step.sampled) sampled.push_back(std::move(token));
    }
    if (sampled.empty()) return sampled;
    std::vector<SampledToken> more = Continue(runner, slot, position, sampled[0].id, count - 1);
    std::move(more.begin(), more.end(), std::back_inserter(sampled));
    return sampled;
  }

  // `count` more tokens of the sequence in `slot`, the first after `token` at `position`.
  static std::vector<SampledToken> Continue(ModelRunner& runner, int32_t slot, int64_t position,
                                            TokenId token, int64_t count) {
    std::vector<SampledToken> sampled;
    while (static_cast<int64_t>(sampled.size()) < count) {
      StepRow row = {slot, position++, {token}, RowOutput::kLast};
      StepOutput step = Step(runner, {{std::move(row)}});
      if (step.sampled.empty()) break;
      token = step.sampled[0].id;
      sampled.push_back(std::move(step.sampled[0]));
    }
    return sampled;
  }

  // The log-probability of every token of `text` but the first, in chunks of `chunk` tokens.
  static std::vector<SampledToken> Score(ModelRunner& runner, int32_t slot,
                                         const std::vector<TokenId>& text, int32_t top,
                                         size_t chunk) {
    SamplingParams params;
    params.top_logprobs = top;
    runner.BindSlot(slot, params);
    std::vector<SampledToken> scored;
    for (size_t at = 0; at < text.size(); at += chunk) {
      const size_t end = std::min(at + chunk, text.size());
      StepRow row = {slot, static_cast<int64_t>(at), Slice(text, at, end), RowOutput::kScore,
                     Slice(text, at + 1, std::min(end + 1, text.size()))};
      StepOutput step = Step(runner, {{std::move(row)}});
      EXPECT_TRUE(step.sampled.empty());
      EXPECT_EQ(step.scored.size(), 1U);
      if (step.scored.size() != 1) break;
      for (SampledToken& token : step.scored[0]) scored.push_back(std::move(token));
    }
    return scored;
  }

  static std::vector<TokenId> Slice(const std::vector<TokenId>& tokens, size_t begin, size_t end) {
    return {tokens.begin() + static_cast<int64_t>(begin),
            tokens.begin() + static_cast<int64_t>(end)};
  }

  const RunnerDevice& device_ = TestedRunners();
  TestRandom random_;
  NetworkConfig config_;
  const TempFolder folder_;
  LoadOptions options_;
  TensorMap tensors_;
};

inline std::string CaseName(const testing::TestParamInfo<NetworkCase>& test) {
  return test.param.name;
}

}  // namespace aft

#endif  // AFT_TESTS_PROPERTY_RUNNER_FIXTURE_H_
