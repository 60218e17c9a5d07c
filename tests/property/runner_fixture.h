#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "model/api/load.h"
#include "model/checkpoint/checkpoint.h"
#include "tests/property/runner_calls.h"
#include "tests/property/tested_runners.h"
#include "tests/support/close.h"
#include "tests/support/same_bits.h"
#include "tests/support/temp_files.h"

namespace aft {

// A random checkpoint on disk, and runners for it on the device of this test program.
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

  // Draws new weights and writes the checkpoint. If a test has not called it, the first Load does.
  void Write() {
    tensors_ = RandomTensors(config_, random_);
    Rewrite();
  }
  void Rewrite() {
    const absl::Status status = WriteCheckpoint(options_.checkpoint_dir, config_, tensors_);
    ASSERT_TRUE(status.ok()) << status;
  }

  // These load the checkpoint on the device of this test program.
  std::unique_ptr<ModelRunner> Load() { return LoadBoth().runner; }
  std::unique_ptr<EncoderRunner> LoadEncoder() { return LoadBoth().encoder; }

  // Whether tokens that were computed in another batch, or from another cut, are the same.
  template <typename Tokens>
  bool Same(const Tokens& a, const Tokens& b) const {
    return RunnerCalls::Same(a, b, device_.same_bits ? 0 : device_.log_probability);
  }

  // Whether vectors that were computed in another batch, or from another cut, are the same.
  testing::AssertionResult Same(const std::vector<float>& a, const std::vector<float>& b) const {
    if (device_.same_bits && SameBits(a, b)) return testing::AssertionSuccess();
    if (device_.same_bits) return testing::AssertionFailure() << Close(a, b, {0, 0}).message();
    return Close(a, b, device_.vectors);
  }

  // Expects the same vectors for each input of an encoder, alone and in a batch in either order, on
  // one thread and on three.
  void ExpectNeighboursAndThreadsChangeNothing(std::vector<EncoderInput> inputs) {
    const std::unique_ptr<EncoderRunner> encoder = LoadEncoder();
    options_.intra_op_threads = 3;
    const std::unique_ptr<EncoderRunner> threaded = LoadEncoder();
    std::vector<std::vector<float>> alone;
    for (const EncoderInput& input : inputs) alone.push_back(Run(*encoder, {input}));
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_TRUE(Same(Run(*encoder, inputs), Flat(alone)));
      if (!device_.slow) {
        EXPECT_TRUE(Same(Run(*threaded, inputs), Flat(alone)));
      }
      std::reverse(inputs.begin(), inputs.end());
      std::reverse(alone.begin(), alone.end());
    }
  }

  // Loads a language model or an encoder.
  LoadedModel LoadBoth() {
    if (tensors_.empty()) Write();
    absl::StatusOr<LoadedModel> model = device_.load(options_, config_, tensors_);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  const RunnerDevice& device_ = TestedRunners();
  const TempFolder folder_;
  LoadOptions options_;
};

}  // namespace aft
