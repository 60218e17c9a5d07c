#include <numbers>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/full_like.h"
#include "base/status_macros.h"
#include "model/train/examples.h"
#include "model/train/objectives/running_text.h"

namespace aft {
namespace {

constexpr int64_t kIgnored = -100;  // a target that cross_entropy_loss leaves out

// The network reads `input` and has to find `target`; both are [B, T].
struct MaskedBatch {
  at::Tensor input = {}, target = {};
};

// Learns to find a share of the tokens, most of which are replaced in the input. They are at random
// places; each segment has at least one of them. A segment is a stretch of a text and, around it,
// the tokens that the tokenizer adds to every text, because every text that is served has them.
// These are never masked.
class MaskedTokens : public RunningText {
 public:
  MaskedTokens(TrainConfig run, Corpus texts) : RunningText(std::move(run), std::move(texts)) {
    for (const Corpus::Text& text : corpus().texts) {
      const auto end = static_cast<int64_t>(text.tokens.size());
      for (int64_t at = text.train_tokens; at + stretch() <= end; at += stretch()) {
        held_out_.push_back(absl::MakeConstSpan(text.tokens)
                                .subspan(static_cast<size_t>(at), static_cast<size_t>(stretch())));
      }
    }
  }

  const FigureNames& names() const override {
    static const FigureNames& names = *new FigureNames{
        .amount = "tokens",
        .unit = "bits per masked token",
        .train_column = "train_bits",
        .held_out = {{"held_out_bits", "bits per masked token"},
                     {"held_out_accuracy", "share found", /*is_loss=*/false}},
    };
    return names;
  }

  Loss Next(const TrainNetwork& network, int64_t step) override {
    std::mt19937_64 random = SeededBy(config().seed, static_cast<uint64_t>(step));
    std::vector<absl::Span<const int32_t>> stretches;
    for (int64_t row = 0; row < config().batch; ++row) {
      TextStream stream(&corpus());
      bool restarted = false;
      stretches.push_back(stream.Next(stretch(), /*restart=*/true, random, &restarted)
                              .first(static_cast<size_t>(stretch())));
    }
    const MaskedBatch batch = Mask(stretches, random);
    const at::Tensor logits = network.Forward(
        batch.input, nullptr, {.bf16 = config().bf16, .dropouts = DropoutsOf(config())});
    return {at::cross_entropy_loss(logits.flatten(0, 1), batch.target.flatten()),
            1 / std::numbers::ln2};
  }

  std::vector<double> Measure(const TrainNetwork& network, Extent extent) const override {
    const at::NoGradGuard no_grad;
    const auto have = static_cast<int64_t>(held_out_.size());
    const int64_t count = extent == Extent::kAll ? have
                          : extent == Extent::kOneBatch
                              ? 1
                              : std::min(have, config().eval_tokens / config().segment);
    double nats = 0, found = 0, tokens = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t segment = i * have / count;
      // A segment has the same masked tokens in every evaluation.
      std::mt19937_64 random = SeededBy(~config().seed, static_cast<uint64_t>(segment));
      const MaskedBatch batch = Mask({held_out_[static_cast<size_t>(segment)]}, random);
      const at::Tensor logits =
          network.Forward(batch.input, nullptr, {.bf16 = config().bf16}).squeeze(0);
      const at::Tensor target = batch.target.squeeze(0);
      nats += at::cross_entropy_loss(logits, target, {}, at::Reduction::Sum).item<double>();
      found += logits.argmax(1).eq(target).sum().item<double>();
      tokens += target.ne(kIgnored).sum().item<double>();
    }
    return {nats / tokens / std::numbers::ln2, found / tokens};
  }

  std::optional<double> Rank(const std::vector<double>& figures) const override {
    return figures[0];
  }

 private:
  // The tokens of a segment that are not added by the tokenizer.
  int64_t stretch() const { return config().segment - FrameTokens(config().network); }

  MaskedBatch Mask(const std::vector<absl::Span<const int32_t>>& stretches,
                   std::mt19937_64& random) const {
    const NetworkConfig& network = config().network;
    std::vector<std::vector<int32_t>> segments;
    for (const absl::Span<const int32_t> tokens : stretches) {
      std::vector<int32_t>& segment = segments.emplace_back(network.text_prefix);
      segment.insert(segment.end(), tokens.begin(), tokens.end());
      segment.insert(segment.end(), network.text_suffix.begin(), network.text_suffix.end());
    }
    MaskedBatch batch{.input = MakeTextBatch({segments.begin(), segments.end()}).ids};
    batch.target = at::full_like(batch.input, kIgnored);
    std::uniform_real_distribution<double> share;
    std::uniform_int_distribution<int64_t> any_token(0, network.vocab_size - 1);
    const auto first = static_cast<int64_t>(network.text_prefix.size());
    std::uniform_int_distribution<int64_t> any_place(first, first + stretch() - 1);
    for (int64_t row = 0; row < batch.input.size(0); ++row) {
      auto* const input = batch.input.select(0, row).mutable_data_ptr<int64_t>();
      auto* const target = batch.target.select(0, row).mutable_data_ptr<int64_t>();
      const int64_t always = any_place(random);
      for (int64_t t = first; t < first + stretch(); ++t) {
        if (share(random) >= config().mask_probability && t != always) continue;
        target[t] = input[t];
        const double kind = share(random);
        if (kind < 0.8) {
          input[t] = config().mask_token;
        } else if (kind < 0.9) {
          input[t] = any_token(random);
        }
      }
    }
    return batch;
  }

  std::vector<absl::Span<const int32_t>> held_out_;  // stretches, of corpus()
};

}  // namespace

absl::StatusOr<std::unique_ptr<Objective>> MakeMaskedTokens(const TrainConfig& config,
                                                            TokenizerSource tokenizer) {
  AFT_ASSIGN_OR_RETURN(Corpus corpus, ReadCorpus(config, tokenizer));
  return std::make_unique<MaskedTokens>(config, std::move(corpus));
}

}  // namespace aft
