#ifndef AFT_TESTS_PROPERTY_RUNNER_FIXTURE_H_
#define AFT_TESTS_PROPERTY_RUNNER_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "model/api/load.h"
#include "model/checkpoint/checkpoint.h"
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
  std::unique_ptr<ModelRunner> Load() { return LoadBoth().runner; }
  std::unique_ptr<EncoderRunner> LoadEncoder() { return LoadBoth().encoder; }

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

  // A language model or an encoder.
  LoadedModel LoadBoth() {
    absl::StatusOr<LoadedModel> model = device_.load(options_, config_, tensors_);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : LoadedModel();
  }

  const RunnerDevice& device_ = TestedRunners();
  const TempFolder folder_;
  LoadOptions options_;
};

}  // namespace aft

#endif  // AFT_TESTS_PROPERTY_RUNNER_FIXTURE_H_
