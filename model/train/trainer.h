#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/train/corpus.h"
#include "model/train/curve.h"
#include "model/train/optimizer.h"
#include "model/train/train_config.h"
#include "model/train/train_network.h"

namespace aft {

// One training run in one output folder:
//   config.json, model.safetensors   the checkpoint with the best held-out figure so far
//   tokenizer.json, ...              its tokenizer's files (run_tokenizer.h)
//   resume.safetensors               everything needed to go on exactly where the run stopped
//   curve.csv, curve.svg             the learning curve
// Every file is replaced atomically, so a run may be killed at any time.
class Trainer {
 public:
  struct Progress {
    int64_t step, total_steps, tokens;
    double train_bpb;          // of this step
    double tokens_per_second;  // since the run (re)started
    double eta_seconds;
  };
  using ProgressFn = std::function<void(const Progress&)>;
  using EvalFn = std::function<void(const CurvePoint&, bool best)>;

  // Goes on from `out_dir`/resume.safetensors when it exists. FAILED_PRECONDITION when that file
  // belongs to another network, batch, tokenizer or other texts; DATA_LOSS when it is damaged.
  static absl::StatusOr<Trainer> Create(TrainConfig config, std::string out_dir);

  // Trains until total_tokens, or until *stop becomes true; saves before it returns.
  // INTERNAL when the loss is not finite; the folder then holds the last good state.
  absl::Status Run(const std::atomic<bool>& stop, const ProgressFn& on_progress,
                   const EvalFn& on_eval);

  int64_t step() const { return optimizer_.steps; }
  int64_t total_steps() const;
  const Corpus& corpus() const { return *corpus_; }

 private:
  Trainer(TrainConfig config, std::string out_dir, std::unique_ptr<Corpus> corpus);

  double TrainStep();  // returns the loss in bits per byte
  absl::Status Evaluate(double train_bpb, double seconds, const EvalFn& on_eval);
  absl::Status Save() const;
  absl::Status Resume();

  TrainConfig config_;
  std::string out_dir_;
  std::unique_ptr<Corpus> corpus_;  // streams point to it
  TrainNetwork network_;
  AdamW optimizer_;
  NetworkCarry carry_;
  std::vector<TextStream> streams_;
  std::mt19937_64 random_;
  std::vector<CurvePoint> curve_;
  double seconds_ = 0;  // of training before this run
  double best_ = 1e9;
};

}  // namespace aft
