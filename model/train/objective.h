#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/checkpoint/safetensors.h"
#include "model/state/xxhash64.h"
#include "model/train/curve.h"
#include "model/train/run_tokenizer.h"
#include "model/train/train_config.h"
#include "model/train/train_network.h"

namespace aft {

// The task that a run learns. An objective has the data, the loss of a step and the held-out
// figures. Thread-compatible.
class Objective {
 public:
  virtual ~Objective() = default;

  virtual const FigureNames& names() const = 0;
  // One sentence about the data: "1000 training tokens, 100 held out".
  virtual std::string Describe() const = 0;
  // A hash of the training data and of the held-out data, as tokens or pixels.
  virtual uint64_t DataHash() const = 0;

  virtual int64_t total_steps() const = 0;
  virtual int64_t eval_every_steps() const = 0;  // 0: the trainer chooses
  virtual int64_t amount_per_step() const = 0;   // of FigureNames::amount

  // The mean loss, in nats, of the batch of step `step`, counted from 0. Times `scale` it is in
  // FigureNames::unit. Its random draws depend only on config.seed, on `step` and on what Restore
  // has set.
  struct Loss {
    at::Tensor nats;
    double scale = 1;
  };
  virtual Loss Next(const TrainNetwork& network, int64_t step) = 0;

  // How much of the held-out data is measured: all of it, as much as the config says for
  // evaluations during a run, or one batch (of kNextTokens, one segment for each figure).
  enum class Extent { kAll, kEvaluation, kOneBatch };
  // The figures of the held-out data.
  virtual std::vector<double> Measure(const TrainNetwork& network, Extent extent) const = 0;
  // The trainer keeps the weights with the lowest rank. Without a rank it keeps the last weights,
  // so that the held-out figures do not influence the choice.
  virtual std::optional<double> Rank(const std::vector<double>& figures) const = 0;

  // Save adds to a resume file the state of Next, which is not in the weights; Restore reads it
  // again. FAILED_PRECONDITION: the file does not fit the data; DATA_LOSS: it is damaged.
  virtual void Save(SafetensorsFile& /*file*/) const {}
  virtual absl::Status Restore(const SafetensorsFile& /*file*/) { return absl::OkStatus(); }
};

// Makes the config's objective and reads its data. It calls `tokenizer` once unless the data is
// images. Errors name the file.
absl::StatusOr<std::unique_ptr<Objective>> MakeObjective(const TrainConfig& config,
                                                         TokenizerSource tokenizer);

// A generator of random numbers that depend only on the arguments.
std::mt19937_64 SeededBy(uint64_t seed, uint64_t stream);

// A hash of the bytes of an array.
template <typename Array>
uint64_t HashOf(const Array& values, uint64_t seed) {
  return XxHash64(absl::string_view(reinterpret_cast<const char*>(values.data()),
                                    values.size() * sizeof(*values.data())),
                  seed);
}

// Copies the file's tensor of that name into `tensor`. False when the file has none of that shape.
bool RestoreTensor(const SafetensorsFile& file, const std::string& name, at::Tensor& tensor);

// ---- The objectives. REQUIRES: the config is of their kind.
absl::StatusOr<std::unique_ptr<Objective>> MakeNextTokens(const TrainConfig& config,
                                                          TokenizerSource tokenizer);
absl::StatusOr<std::unique_ptr<Objective>> MakeMaskedTokens(const TrainConfig& config,
                                                            TokenizerSource tokenizer);
absl::StatusOr<std::unique_ptr<Objective>> MakeImageLabels(const TrainConfig& config);
absl::StatusOr<std::unique_ptr<Objective>> MakeTextLabels(const TrainConfig& config,
                                                          TokenizerSource tokenizer);
absl::StatusOr<std::unique_ptr<Objective>> MakePairs(const TrainConfig& config,
                                                     TokenizerSource tokenizer);

}  // namespace aft
