#include <algorithm>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/clamp_min.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/linalg_vector_norm.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/api/pooling.h"
#include "model/train/examples.h"
#include "model/train/objective.h"

namespace aft {
namespace {

// The vector of each text, by the pooling of the network: values [B, T, n] -> [B, n].
at::Tensor VectorsOfTexts(const at::Tensor& values, const at::Tensor& mask, Pooling pooling) {
  if (pooling == Pooling::kMean) return MeanOfTokens(values, mask);
  if (pooling == Pooling::kFirst) return values.select(1, 0);
  if (!mask.defined()) return values.select(1, values.size(1) - 1);
  const at::Tensor last = mask.eq(0).sum(1) - 1;
  return values.gather(1, last.view({-1, 1, 1}).expand({-1, 1, values.size(2)})).squeeze(1);
}

// Learns to find, for each text, the other text of its pair among the texts of the batch. It goes
// by the cosine of the texts' vectors. A text's vector is the one that the server's Encode makes
// with POOLING_MODEL and normalize.
class Pairs : public Objective {
 public:
  Pairs(const TrainConfig& config, ExampleSplit examples)
      : config_(config),
        examples_(std::move(examples)),
        order_(Count(examples_.train), config.batch, config.seed) {}

  const FigureNames& names() const override {
    static const FigureNames& names =
        *new FigureNames{.amount = "pairs",
                         .unit = "nats",
                         .train_column = "train_loss",
                         .held_out = {{"held_out_loss", "loss"},
                                      {"held_out_accuracy", "share found", /*is_loss=*/false}}};
    return names;
  }
  std::string Describe() const override {
    return absl::StrCat(Count(examples_.train), " training pairs, ", Count(examples_.held_out),
                        " held out");
  }
  uint64_t DataHash() const override { return examples_.Hash(); }

  int64_t total_steps() const override { return config_.epochs * order_.steps_per_epoch(); }
  int64_t eval_every_steps() const override { return config_.eval_every_steps; }
  int64_t amount_per_step() const override { return order_.batch(); }

  Loss Next(const TrainNetwork& network, int64_t step) override {
    const at::Tensor cosines = Cosines(network, examples_.train, order_.Get(step),
                                       {.bf16 = config_.bf16, .dropouts = DropoutsOf(config_)});
    return {BothWays(cosines)};
  }

  // The batches have the same size as in training, because a text is harder to find among more.
  std::vector<double> Measure(const TrainNetwork& network, Extent extent) const override {
    const at::NoGradGuard no_grad;
    const int64_t batch = std::min(order_.batch(), Count(examples_.held_out));
    const int64_t have = Count(examples_.held_out) / batch;
    const int64_t count = extent == Extent::kAll ? have
                          : extent == Extent::kOneBatch
                              ? 1
                              : std::clamp<int64_t>(config_.eval_examples / batch, 1, have);
    double loss = 0, found = 0;
    for (int64_t i = 0; i < count; ++i) {
      std::vector<int64_t> pairs;
      for (int64_t j = 0; j < batch; ++j) pairs.push_back(i * have / count * batch + j);
      const at::Tensor cosines = Cosines(network, examples_.held_out, pairs, {.bf16 = false});
      loss += BothWays(cosines).item<double>();
      const at::Tensor own = at::arange(batch);
      found += (cosines.argmax(0).eq(own).sum() + cosines.argmax(1).eq(own).sum()).item<double>();
    }
    return {loss / static_cast<double>(count), found / static_cast<double>(2 * batch * count)};
  }

  std::optional<double> Rank(const std::vector<double>& figures) const override {
    return figures[0];
  }

 private:
  static int64_t Count(const TextExamples& examples) {
    return static_cast<int64_t>(examples.texts.size() / 2);
  }

  // The first texts of the pairs are the rows, the second ones the columns.
  at::Tensor Cosines(const TrainNetwork& network, const TextExamples& from,
                     const std::vector<int64_t>& pairs, TrainNetwork::Options options) const {
    std::vector<std::vector<int32_t>> texts;
    for (const size_t side : {0, 1}) {
      for (const int64_t pair : pairs) {
        texts.push_back(CutText(from.texts[2 * static_cast<size_t>(pair) + side], config_.network,
                                static_cast<size_t>(config_.segment)));
      }
    }
    const TextBatch batch = MakeTextBatch({texts.begin(), texts.end()});
    options.mask = batch.mask;
    const at::Tensor vectors = VectorsOfTexts(network.Forward(batch.ids, nullptr, options),
                                              batch.mask, config_.network.pooling);
    const at::Tensor units =
        vectors / at::clamp_min(at::linalg_vector_norm(vectors, 2, {1}, /*keepdim=*/true), 1e-12);
    const auto sides = units.chunk(2, 0);
    return sides[0].matmul(sides[1].t());
  }

  at::Tensor BothWays(const at::Tensor& cosines) const {
    const at::Tensor scores = cosines / config_.temperature;
    const at::Tensor own = at::arange(scores.size(0));
    return (at::cross_entropy_loss(scores, own) + at::cross_entropy_loss(scores.t(), own)) / 2;
  }

  const TrainConfig config_;
  const ExampleSplit examples_;
  EpochOrder order_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Objective>> MakePairs(const TrainConfig& config,
                                                     TokenizerSource tokenizer) {
  AFT_ASSIGN_OR_RETURN(ExampleSplit examples, ReadExamples(config, tokenizer));
  // A text that is sought among one is always found, so the first evaluation would stay the best.
  if (examples.held_out.texts.size() < 4) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.examples.front(),
                     ": only one pair is held out, but a figure needs at least two; give "
                     "more pairs or a larger held_out"));
  }
  return std::make_unique<Pairs>(config, std::move(examples));
}

}  // namespace aft
