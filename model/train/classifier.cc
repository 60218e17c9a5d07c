#include "model/train/classifier.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/stack.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/atomic_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/train/optimizer.h"

namespace aft {
namespace {

using Clock = std::chrono::steady_clock;

// Logits [N, labels] of images [N, H, W]: the means of their tokens'.
at::Tensor Classify(const TrainNetwork& network, const at::Tensor& pixels,
                    TrainNetwork::Options options) {
  options.grid_width = pixels.size(2);
  return network.Forward(pixels.flatten(1), nullptr, options).mean(1);
}

class Batches {
 public:
  Batches(const TrainConfig& config, const LabelledImages& images)
      : config_(config),
        images_(images),
        random_(config.seed),
        noise_(at::detail::createCPUGenerator(config.seed)),
        order_(static_cast<size_t>(images.count())) {
    std::iota(order_.begin(), order_.end(), int64_t{0});
  }

  int64_t per_epoch() const { return (images_.count() + config_.batch - 1) / config_.batch; }

  void Shuffle() { std::shuffle(order_.begin(), order_.end(), random_); }

  // Batch i of the epoch; the last one may be smaller.
  LabelledImages Get(int64_t i) {
    const int64_t begin = i * config_.batch;
    const int64_t end = std::min(begin + config_.batch, images_.count());
    std::vector<at::Tensor> pixels;
    std::vector<at::Tensor> classes;
    for (int64_t at = begin; at < end; ++at) {
      const int64_t image = order_[static_cast<size_t>(at)];
      pixels.push_back(Noisy(Shifted(images_.pixels[image])));
      classes.push_back(images_.classes[image]);
    }
    return {at::stack(pixels), at::stack(classes)};
  }

 private:
  // Moved within its frame; what comes in is 0.
  at::Tensor Shifted(const at::Tensor& image) {
    if (config_.shift == 0) return image;
    std::uniform_int_distribution<int64_t> offset(0, 2 * config_.shift);
    const int64_t s = config_.shift;
    const int64_t row = offset(random_);
    const int64_t column = offset(random_);
    return at::constant_pad_nd(image, {s, s, s, s})
        .slice(0, row, row + image.size(0))
        .slice(1, column, column + image.size(1));
  }

  at::Tensor Noisy(const at::Tensor& image) {
    if (config_.noise == 0) return image;
    const at::Tensor change =
        at::randint(-config_.noise, config_.noise + 1, image.sizes(), noise_, at::kLong);
    return (image + change).clamp(0, config_.network.vocab_size - 1);
  }

  const TrainConfig& config_;
  const LabelledImages& images_;
  std::mt19937_64 random_;
  at::Generator noise_;
  std::vector<int64_t> order_;
};

absl::Status WriteCurve(const std::string& path, const std::vector<Epoch>& curve) {
  std::string text = "epoch,seconds,train_loss,held_out_loss,held_out_accuracy\n";
  for (const Epoch& epoch : curve) {
    absl::StrAppendFormat(&text, "%d,%.1f,%.4f,%.4f,%.4f\n", epoch.number, epoch.seconds,
                          epoch.train_loss, epoch.held_out.loss, epoch.held_out.accuracy);
  }
  return WriteFileAtomically(path, {text});
}

}  // namespace

absl::StatusOr<ImageSplit> ReadSplit(const TrainConfig& config) {
  AFT_ASSIGN_OR_RETURN(const LabelledImages all,
                       ReadImages(config.images, config.network, config.image_width));
  const auto held_out = static_cast<int64_t>(config.held_out * static_cast<double>(all.count()));
  if (held_out == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.images, ": ", all.count(), " images are too few to hold any out"));
  }
  const int64_t train = all.count() - held_out;
  return ImageSplit{all.Slice(0, train), all.Slice(train, all.count())};
}

ClassifierScore MeasureClassifier(const TrainNetwork& network, const LabelledImages& images) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kBatch = 256;
  double loss = 0;
  int64_t right = 0;
  for (int64_t begin = 0; begin < images.count(); begin += kBatch) {
    const LabelledImages batch = images.Slice(begin, std::min(begin + kBatch, images.count()));
    const at::Tensor logits = Classify(network, batch.pixels, {.bf16 = false});
    loss += at::cross_entropy_loss(logits, batch.classes, {}, at::Reduction::Sum).item<double>();
    right += logits.argmax(1).eq(batch.classes).sum().item<int64_t>();
  }
  const auto count = static_cast<double>(images.count());
  return {.loss = loss / count, .accuracy = static_cast<double>(right) / count};
}

absl::Status TrainClassifier(const TrainConfig& config, const ImageSplit& images,
                             const std::string& out_dir, const std::atomic<bool>& stop,
                             const std::function<void(const Epoch&)>& on_epoch) {
  TrainNetwork network(config.network, config.seed, config.weight_spread);
  AdamW optimizer(config.network, network.parameters());
  Batches batches(config, images.train);
  std::vector<Epoch> curve;
  const Clock::time_point start = Clock::now();
  while (static_cast<int64_t>(curve.size()) < config.epochs && !stop) {
    batches.Shuffle();
    double loss_sum = 0;
    for (int64_t i = 0; i < batches.per_epoch(); ++i) {
      const LabelledImages batch = batches.Get(i);
      const at::Tensor loss = at::cross_entropy_loss(
          Classify(network, batch.pixels, {.bf16 = config.bf16, .dropout = config.dropout}),
          batch.classes);
      const double nats = loss.item<double>();
      if (!std::isfinite(nats)) {
        return absl::InternalError(
            absl::StrFormat("the loss is not finite in epoch %d", curve.size() + 1));
      }
      loss_sum += nats * static_cast<double>(batch.count());
      loss.backward();
      optimizer.Step(config, optimizer.steps, config.epochs * batches.per_epoch(),
                     network.parameters());
    }
    curve.push_back({.number = static_cast<int64_t>(curve.size()) + 1,
                     .seconds = std::chrono::duration<double>(Clock::now() - start).count(),
                     .train_loss = loss_sum / static_cast<double>(images.train.count()),
                     .held_out = MeasureClassifier(network, images.held_out)});
    AFT_RETURN_IF_ERROR(WriteCheckpoint(out_dir, config.network, network.parameters()));
    AFT_RETURN_IF_ERROR(WriteCurve(out_dir + "/curve.csv", curve));
    on_epoch(curve.back());
  }
  return absl::OkStatus();
}

}  // namespace aft
