#include <algorithm>
#include <functional>
#include <numbers>
#include <sstream>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/train/corpus.h"
#include "model/train/evaluate.h"
#include "model/train/objective.h"

namespace aft {
namespace {

// Every token from those before it, in streams of text whose state is carried from step to step.
class NextTokens : public Objective {
 public:
  NextTokens(TrainConfig config, Corpus corpus)
      : config_(std::move(config)),
        corpus_(std::move(corpus)),
        carry_(EmptyNetworkCarry(config_.network, config_.batch)),
        streams_(static_cast<size_t>(config_.batch), TextStream(&corpus_)),
        random_(config_.seed) {}

  const FigureNames& names() const override {
    static const FigureNames& names = *new FigureNames{
        .amount = "tokens",
        .unit = "bits per byte",
        .train_column = "train_bpb",
        .held_out = {{"held_out_fresh_bpb", "from an empty state"},
                     {"held_out_carried_bpb", "one long state"}},
    };
    return names;
  }

  std::string Describe() const override {
    return absl::StrCat(corpus_.train_tokens(), " training tokens, ", corpus_.held_out_tokens(),
                        " held out");
  }

  int64_t total_steps() const override {
    return (config_.total_tokens + amount_per_step() - 1) / amount_per_step();
  }
  int64_t eval_every_steps() const override { return config_.eval_every_steps; }
  int64_t amount_per_step() const override { return config_.batch * config_.segment; }

  Loss Next(const TrainNetwork& network, int64_t /*step*/) override {
    at::Tensor input = at::empty({config_.batch, config_.segment}, at::kLong);
    at::Tensor target = at::empty({config_.batch, config_.segment}, at::kLong);
    int64_t bytes = 0;
    for (int64_t row = 0; row < config_.batch; ++row) {
      // Without a state to carry, reading on would only show neighbouring text in turn.
      const bool restart = carry_.empty() || std::uniform_real_distribution<double>()(random_) <
                                                 config_.restart_probability;
      bool restarted = false;
      const absl::Span<const int32_t> tokens =
          streams_[static_cast<size_t>(row)].Next(config_.segment, restart, random_, &restarted);
      if (restarted) RestartStream(config_.network, row, carry_);
      bytes += corpus_.Bytes(tokens.subspan(1));
      std::copy(tokens.begin(), tokens.end() - 1, input.select(0, row).mutable_data_ptr<int64_t>());
      std::copy(tokens.begin() + 1, tokens.end(),
                target.select(0, row).mutable_data_ptr<int64_t>());
    }
    const at::Tensor logits =
        network.Forward(input, &carry_, {.bf16 = config_.bf16, .dropouts = DropoutsOf(config_)});
    return {
        at::cross_entropy_loss(logits.flatten(0, 1), target.flatten()),
        static_cast<double>(amount_per_step()) / static_cast<double>(bytes) / std::numbers::ln2};
  }

  std::vector<double> Measure(const TrainNetwork& network, bool all) const override {
    const int64_t tokens = all ? corpus_.held_out_tokens() : config_.eval_tokens;
    const HeldOut held_out =
        EvaluateHeldOut(network, corpus_, config_.segment, tokens, config_.bf16);
    return {held_out.fresh, held_out.carried};
  }

  // A served model meets both: short prompts and long streams.
  std::optional<double> Rank(const std::vector<double>& figures) const override {
    return (figures[0] + figures[1]) / 2;
  }

  void Save(SafetensorsFile& file) const override {
    for (size_t layer = 0; layer < carry_.size(); ++layer) {
      file.tensors[absl::StrCat("carry/", layer, "/k")] = carry_[layer].k;
      file.tensors[absl::StrCat("carry/", layer, "/v")] = carry_[layer].v;
    }
    std::ostringstream random, places;
    random << random_;
    for (const TextStream& stream : streams_) places << stream.text << ' ' << stream.offset << ' ';
    file.metadata["random"] = random.str();
    file.metadata["streams"] = places.str();
  }

  absl::Status Restore(const SafetensorsFile& file) override {
    const at::NoGradGuard no_grad;
    bool complete = true;
    const auto restore = [&](const std::string& name, at::Tensor& tensor) {
      const auto it = file.tensors.find(name);
      complete = complete && it != file.tensors.end() && it->second.sizes() == tensor.sizes();
      if (complete) tensor.copy_(it->second);
    };
    for (size_t layer = 0; layer < carry_.size(); ++layer) {
      restore(absl::StrCat("carry/", layer, "/k"), carry_[layer].k);
      restore(absl::StrCat("carry/", layer, "/v"), carry_[layer].v);
    }
    const auto text = [&file](const char* key) {
      const auto found = file.metadata.find(key);
      return std::istringstream(found == file.metadata.end() ? "" : found->second);
    };
    std::istringstream random = text("random"), places = text("streams");
    random >> random_;
    for (TextStream& stream : streams_) places >> stream.text >> stream.offset;
    if (!complete || !random || !places) return absl::DataLossError("incomplete or damaged");
    if (std::all_of(streams_.begin(), streams_.end(), std::mem_fn(&TextStream::IsInCorpus))) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        "stands at a place that the texts do not have: it belongs to a run with other texts, or is "
        "damaged; choose another --out");
  }

 private:
  const TrainConfig config_;
  const Corpus corpus_;  // streams point to it
  NetworkCarry carry_;
  std::vector<TextStream> streams_;
  std::mt19937_64 random_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Objective>> MakeNextTokens(const TrainConfig& config,
                                                          TokenizerSource tokenizer) {
  AFT_ASSIGN_OR_RETURN(Corpus corpus, ReadCorpus(config, tokenizer));
  return std::make_unique<NextTokens>(config, std::move(corpus));
}

}  // namespace aft
