#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/train/curve.h"
#include "model/train/objective.h"
#include "model/train/optimizer.h"
#include "model/train/train_config.h"
#include "model/train/train_network.h"

namespace aft {

// One training run in one output folder:
//   config.json, model.safetensors   the checkpoint with the best held-out figure so far, or the
//                                    last one (Objective::Rank)
//   tokenizer.json, ...              its tokenizer's files (run_tokenizer.h)
//   resume.safetensors               everything that is needed to resume where the run stopped
//   curve.csv, curve.svg             the learning curve
// Every file is replaced atomically, so a run may be killed at any time. It then resumes from the
// last evaluation, bit for bit as if it had not been killed. The same config gives the same weights
// on the same machine with the same number of threads.
class Trainer {
 public:
  struct Progress {
    int64_t step, total_steps, amount;
    double train_loss;         // of this step, in FigureNames::unit
    double amount_per_second;  // since the run (re)started
    double eta_seconds;
  };
  using ProgressFn = std::function<void(const Progress&)>;
  using EvalFn = std::function<void(const CurvePoint&, bool kept)>;

  // Resumes from `out_dir`/resume.safetensors when it exists. FAILED_PRECONDITION when that file
  // belongs to another network, objective, batch, tokenizer or other texts, when a setting (the
  // error names it) has changed that decides what the held-out figures measure, or when another
  // Trainer works in `out_dir`; DATA_LOSS when the file is damaged; INVALID_ARGUMENT, naming
  // `initial`, when the checkpoint in that folder does not fit; the error of a file, when `out_dir`
  // cannot be written.
  static absl::StatusOr<Trainer> Create(TrainConfig config, std::string out_dir);

  // Trains until the last step, or until *stop becomes true; before it returns it saves what is not
  // saved yet. After a stop between two evaluations it first measures one batch of the held-out
  // data. INTERNAL when the loss, its gradient or a held-out figure is not finite; the folder then
  // holds the last good state, if one was saved.
  absl::Status Run(const std::atomic<bool>& stop, const ProgressFn& on_progress,
                   const EvalFn& on_eval);

  int64_t step() const { return optimizer_.steps; }
  const Objective& objective() const { return *objective_; }
  const TrainNetwork& network() const { return network_; }
  // The tensors that are new, because TrainConfig::initial does not have them in this shape.
  const std::vector<std::string>& new_tensors() const { return new_tensors_; }
  // The tensors of TrainConfig::initial for which the network has no place.
  const std::vector<std::string>& dropped_tensors() const { return dropped_tensors_; }

 private:
  Trainer(TrainConfig config, std::string out_dir, std::shared_ptr<void> lock,
          std::unique_ptr<Objective> objective);

  double TrainStep();  // returns the loss; if that is not finite, the weights stay as they are
  // INTERNAL: a figure is not finite.
  absl::StatusOr<std::vector<double>> Measure(Objective::Extent extent) const;
  absl::Status Evaluate(double train_loss, double seconds, const EvalFn& on_eval);
  absl::Status TakeInitialWeights();
  absl::Status Save(double seconds);  // `seconds` of training, over all runs
  absl::Status NotFinite() const;
  absl::Status Resume();

  TrainConfig config_;
  std::string out_dir_;
  std::shared_ptr<void> lock_;  // keeps other processes from training in out_dir_
  std::unique_ptr<Objective> objective_;
  std::string data_hash_;
  TrainNetwork network_;
  AdamW optimizer_;
  bool saved_ = false;  // whether resume.safetensors has the state of the last step
  std::vector<std::string> new_tensors_, dropped_tensors_;
  std::vector<CurvePoint> curve_;
  double seconds_ = 0;  // of training before this run
  double best_ = 1e9;
};

}  // namespace aft
