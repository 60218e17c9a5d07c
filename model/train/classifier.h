#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/train/images.h"
#include "model/train/train_config.h"
#include "model/train/train_network.h"

namespace aft {

// The images of a config: all but the last ones, which are never trained on.
struct ImageSplit {
  LabelledImages train, held_out;
};
// As ReadImages; INVALID_ARGUMENT also when a part would be empty.
absl::StatusOr<ImageSplit> ReadSplit(const TrainConfig& config);

struct ClassifierScore {
  double loss = 0;      // mean cross-entropy, nats
  double accuracy = 0;  // share of the images whose largest logit is that of their class
};
ClassifierScore MeasureClassifier(const TrainNetwork& network, const LabelledImages& images);

// One row of curve.csv.
struct Epoch {
  int64_t number = 0;  // from 1
  double seconds = 0;  // since the start
  double train_loss = 0;
  ClassifierScore held_out;
};

// Trains a classifier of images, in epochs of all training images in random order, each as
// config.shift and config.noise change it, by the mean cross-entropy of its labels. Ends after
// config.epochs, or with the epoch in which *stop becomes true. Writes config.json,
// model.safetensors and curve.csv into `out_dir` with every epoch: the last weights, not the best
// ones, so that the held-out figures have chosen nothing. The same config gives the same weights,
// on one machine with as many threads. INTERNAL when the loss is not finite; the folder then holds
// the last epoch's.
absl::Status TrainClassifier(const TrainConfig& config, const ImageSplit& images,
                             const std::string& out_dir, const std::atomic<bool>& stop,
                             const std::function<void(const Epoch&)>& on_epoch);

}  // namespace aft
