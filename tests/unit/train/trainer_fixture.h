#pragma once

#include <atomic>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "model/config/config.h"
#include "model/train/curve.h"
#include "model/train/train_config.h"
#include "model/train/trainer.h"
#include "tests/support/temp_files.h"
#include "tests/unit/train/tiny_network.h"

namespace aft {

// A small run: 60 steps of a tiny language model on one text.
class TrainerTest : public testing::Test {
 protected:
  TrainerTest() {
    at::set_num_threads(1);  // tiny tensors: a second thread only waits
    std::ofstream file(dir_ + "/text.txt");
    for (int i = 0; i < 400; ++i) file << "line " << i % 7 << ": the quick brown fox\n";
    config_.network = TinyNetwork();
    config_.texts = {dir_ + "/text.txt"};
    config_.batch = 4;
    config_.segment = 32;
    config_.total_tokens = 4 * 32 * 60;
    config_.warmup_steps = 5;
    config_.learning_rate = 1e-2;
    config_.eval_every_steps = 20;
    config_.eval_tokens = 256;
    config_.dropout = 0;
  }

  // Writes a config file of aft-train, and returns its path. It has config_'s network and text,
  // the sizes above, and `keys`.
  std::string WriteConfig(const std::string& keys) const {
    const std::string path = dir_ + "/train.json";
    WriteBytes(path,
               absl::StrCat(R"({"texts": ["text.txt"], "batch": 4, "segment": 32, "threads": 1,
                   "eval_every_steps": 20, "eval_tokens": 256, "network": )",
                            FormatNetworkConfig(config_.network), ", ", keys, "}"));
    return path;
  }

  // Trains in `out` until the run is complete or `steps` steps are done; returns all losses.
  std::vector<double> Train(const std::string& out, int64_t steps = 1'000'000) {
    auto trainer = Trainer::Create(config_, dir_ + out);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    std::vector<double> losses;
    std::atomic<bool> stop = false;
    const absl::Status status = trainer->Run(
        stop,
        [&](const Trainer::Progress& p) {
          losses.push_back(p.train_loss);
          stop = static_cast<int64_t>(losses.size()) >= steps;
        },
        [](const CurvePoint&, bool) {});
    EXPECT_TRUE(status.ok()) << status;
    return losses;
  }

  // Trains in `out` with a rate that makes the weights so large after one step that no loss is
  // finite. With `stop_at_once` the run is stopped after that step.
  absl::Status Ruin(const std::string& out, bool stop_at_once = false) {
    config_.learning_rate = 1e30;
    config_.warmup_steps = 0;
    config_.clip_norm = 1e30;
    auto trainer = Trainer::Create(config_, dir_ + out);
    if (!trainer.ok()) return trainer.status();
    std::atomic<bool> stop = false;
    return trainer->Run(
        stop, [&](const Trainer::Progress&) { stop = stop_at_once; },
        [](const CurvePoint&, bool) {});
  }

  const TempFolder folder_;
  const std::string dir_ = folder_.path();
  TrainConfig config_;
};

}  // namespace aft
