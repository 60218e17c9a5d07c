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

  // Whether tokens are the same that were computed in another batch or from another cut.
  template <typename Tokens>
  bool Same(const Tokens& a, const Tokens& b) const {
    return RunnerCalls::Same(a, b, device_.same_bits ? 0 : device_.log_probability);
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
