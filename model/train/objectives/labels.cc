#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/tensor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "model/train/examples.h"
#include "model/train/images.h"
#include "model/train/objective.h"

namespace aft {
namespace {

constexpr int64_t kMeasuredAtOnce = 64;

struct LabelledBatch {
  TextBatch tokens;
  at::Tensor classes;      // [B] int64
  int64_t grid_width = 0;  // of images
};

// Logits [B, labels]: the means of the logits of the tokens.
at::Tensor Classify(const TrainNetwork& network, const LabelledBatch& batch,
                    TrainNetwork::Options options) {
  options.mask = batch.tokens.mask;
  options.grid_width = batch.grid_width;
  return MeanOfTokens(network.Forward(batch.tokens.ids, nullptr, options), batch.tokens.mask);
}

// Learns the label of each example from the mean of its tokens' logits.
class Labels : public Objective {
 public:
  Labels(const TrainConfig& config, int64_t count)
      : config_(config), order_(count, config.batch, config.seed) {}

  int64_t total_steps() const override { return config_.epochs * order_.steps_per_epoch(); }
  int64_t amount_per_step() const override { return order_.batch(); }

  Loss Next(const TrainNetwork& network, int64_t step) override {
    std::mt19937_64 random = SeededBy(config_.seed, static_cast<uint64_t>(step));
    const LabelledBatch batch = TrainBatch(order_.Get(step), random);
    const at::Tensor logits =
        Classify(network, batch, {.bf16 = config_.bf16, .dropouts = DropoutsOf(config_)});
    return {at::cross_entropy_loss(logits, batch.classes)};
  }

  std::vector<double> Measure(const TrainNetwork& network, Extent extent) const override {
    const at::NoGradGuard no_grad;
    const int64_t have = held_out_count();
    const int64_t spread = extent == Extent::kAll ? have : std::min(have, eval_count());
    const int64_t count = extent == Extent::kOneBatch ? std::min(spread, kMeasuredAtOnce) : spread;
    double loss = 0, right = 0;
    for (int64_t begin = 0; begin < count; begin += kMeasuredAtOnce) {
      std::vector<int64_t> examples;
      for (int64_t i = begin; i < std::min(begin + kMeasuredAtOnce, count); ++i) {
        examples.push_back(i * have / spread);
      }
      const LabelledBatch batch = HeldOutBatch(examples);
      const at::Tensor logits = Classify(network, batch, {.bf16 = false});
      loss += at::cross_entropy_loss(logits, batch.classes, {}, at::Reduction::Sum).item<double>();
      right += logits.argmax(1).eq(batch.classes).sum().item<double>();
    }
    return {loss / static_cast<double>(count), right / static_cast<double>(count)};
  }

 protected:
  static FigureNames NamesOf(const char* amount) {
    return {.amount = amount,
            .unit = "nats",
            .train_column = "train_loss",
            .held_out = {{"held_out_loss", "loss"},
                         {"held_out_accuracy", "accuracy", /*is_loss=*/false}}};
  }

  const TrainConfig& config() const { return config_; }
  int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }

 private:
  virtual LabelledBatch TrainBatch(const std::vector<int64_t>& examples,
                                   std::mt19937_64& random) const = 0;
  virtual int64_t held_out_count() const = 0;
  virtual int64_t eval_count() const = 0;  // per evaluation during the run
  virtual LabelledBatch HeldOutBatch(const std::vector<int64_t>& examples) const = 0;

  const TrainConfig config_;
  EpochOrder order_;
};

class TextLabels : public Labels {
 public:
  TextLabels(const TrainConfig& config, ExampleSplit examples)
      : Labels(config, static_cast<int64_t>(examples.train.texts.size())),
        examples_(std::move(examples)) {}

  const FigureNames& names() const override {
    static const FigureNames& names = *new FigureNames(NamesOf("texts"));
    return names;
  }
  std::string Describe() const override {
    return absl::StrCat(examples_.train.texts.size(), " training texts, ",
                        examples_.held_out.texts.size(), " held out");
  }
  uint64_t DataHash() const override { return examples_.Hash(); }
  int64_t eval_every_steps() const override { return config().eval_every_steps; }
  std::optional<double> Rank(const std::vector<double>& figures) const override {
    return figures[0];
  }

 private:
  LabelledBatch TrainBatch(const std::vector<int64_t>& examples,
                           std::mt19937_64& random) const override {
    return Batch(examples_.train, examples, random);
  }
  int64_t held_out_count() const override {
    return static_cast<int64_t>(examples_.held_out.texts.size());
  }
  int64_t eval_count() const override { return config().eval_examples; }
  LabelledBatch HeldOutBatch(const std::vector<int64_t>& examples) const override {
    // Every evaluation draws the same stretches.
    std::mt19937_64 random = SeededBy(~config().seed, static_cast<uint64_t>(examples.front()));
    return Batch(examples_.held_out, examples, random);
  }

  LabelledBatch Batch(const TextExamples& from, const std::vector<int64_t>& examples,
                      std::mt19937_64& random) const {
    const auto most = static_cast<size_t>(Length(random));
    std::vector<std::vector<int32_t>> texts;
    std::vector<int64_t> classes;
    for (const int64_t i : examples) {
      const std::vector<int32_t>& text = from.texts[static_cast<size_t>(i)];
      size_t skip = 0;
      if (config().least_tokens > 0 && text.size() > most) {
        skip = std::uniform_int_distribution<size_t>(0, text.size() - most)(random);
      }
      texts.push_back(CutText(text, config().network, most, skip));
      classes.push_back(from.classes[static_cast<size_t>(i)]);
    }
    return {MakeTextBatch({texts.begin(), texts.end()}), at::tensor(classes, at::kLong)};
  }

  // The most tokens that a text of the batch has.
  int64_t Length(std::mt19937_64& random) const {
    if (config().least_tokens == 0) return config().segment;
    const double ratio =
        static_cast<double>(config().segment) / static_cast<double>(config().least_tokens);
    const double power = std::uniform_real_distribution<double>()(random);
    return std::clamp(
        static_cast<int64_t>(static_cast<double>(config().least_tokens) * std::pow(ratio, power)),
        FrameTokens(config().network) + 1, config().segment);
  }

  const ExampleSplit examples_;
};

class ImageLabels : public Labels {
 public:
  ImageLabels(const TrainConfig& config, LabelledImages train, LabelledImages held_out)
      : Labels(config, train.count()), train_(std::move(train)), held_out_(std::move(held_out)) {}

  const FigureNames& names() const override {
    static const FigureNames& names = *new FigureNames(NamesOf("images"));
    return names;
  }
  std::string Describe() const override {
    return absl::StrCat(train_.count(), " training images, ", held_out_.count(), " held out");
  }
  uint64_t DataHash() const override {
    auto hash = static_cast<uint64_t>(config().image_width);
    for (const at::Tensor& part :
         {train_.pixels, train_.classes, held_out_.pixels, held_out_.classes}) {
      hash = HashOf(
          absl::MakeConstSpan(part.const_data_ptr<int64_t>(), static_cast<size_t>(part.numel())),
          hash);
    }
    return hash;
  }
  int64_t eval_every_steps() const override { return steps_per_epoch(); }
  // The last weights are kept.
  std::optional<double> Rank(const std::vector<double>& /*figures*/) const override { return {}; }

 private:
  LabelledBatch TrainBatch(const std::vector<int64_t>& examples,
                           std::mt19937_64& random) const override {
    at::Generator noise = at::detail::createCPUGenerator(random());
    std::vector<at::Tensor> pixels;
    pixels.reserve(examples.size());
    for (const int64_t i : examples) {
      pixels.push_back(Noisy(Shifted(train_.pixels[i], random), noise));
    }
    return BatchOf(
        {at::stack(pixels), train_.classes.index_select(0, at::tensor(examples, at::kLong))});
  }
  int64_t held_out_count() const override { return held_out_.count(); }
  int64_t eval_count() const override { return held_out_.count(); }
  LabelledBatch HeldOutBatch(const std::vector<int64_t>& examples) const override {
    return BatchOf(held_out_.Slice(examples.front(), examples.back() + 1));
  }

  static LabelledBatch BatchOf(const LabelledImages& images) {
    return {.tokens = {.ids = images.pixels.flatten(1)},
            .classes = images.classes,
            .grid_width = images.pixels.size(2)};
  }

  // Moves the image within its frame. Pixels that come in from outside are 0.
  at::Tensor Shifted(const at::Tensor& image, std::mt19937_64& random) const {
    if (config().shift == 0) return image;
    const int64_t s = config().shift;
    std::uniform_int_distribution<int64_t> offset(0, 2 * s);
    const int64_t row = offset(random);
    const int64_t column = offset(random);
    return at::constant_pad_nd(image, {s, s, s, s})
        .slice(0, row, row + image.size(0))
        .slice(1, column, column + image.size(1));
  }

  at::Tensor Noisy(const at::Tensor& image, at::Generator& generator) const {
    const int64_t noise = config().noise;
    if (noise == 0) return image;
    const at::Tensor change = at::randint(-noise, noise + 1, image.sizes(), generator, at::kLong);
    return (image + change).clamp(0, config().network.vocab_size - 1);
  }

  const LabelledImages train_, held_out_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Objective>> MakeTextLabels(const TrainConfig& config,
                                                          TokenizerSource tokenizer) {
  AFT_ASSIGN_OR_RETURN(ExampleSplit examples, ReadExamples(config, tokenizer));
  return std::make_unique<TextLabels>(config, std::move(examples));
}

absl::StatusOr<std::unique_ptr<Objective>> MakeImageLabels(const TrainConfig& config) {
  AFT_ASSIGN_OR_RETURN(const LabelledImages all,
                       ReadImages(config.images, config.network, config.image_width));
  const auto held_out = static_cast<int64_t>(config.held_out * static_cast<double>(all.count()));
  if (held_out == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.images, ": ", all.count(), " images are too few to hold any out"));
  }
  const int64_t train = all.count() - held_out;
  return std::make_unique<ImageLabels>(config, all.Slice(0, train), all.Slice(train, all.count()));
}

}  // namespace aft
