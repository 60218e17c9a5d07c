#include <algorithm>
#include <functional>
#include <numbers>
#include <sstream>
#include <utility>

#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/train/evaluate.h"
#include "model/train/objectives/running_text.h"

namespace aft {
namespace {

// Learns to predict every token from the tokens before it, in streams of text whose state is
// carried from step to step.
class NextTokens : public RunningText {
 public:
  NextTokens(TrainConfig run, Corpus texts)
      : RunningText(std::move(run), std::move(texts)),
        carry_(EmptyNetworkCarry(config().network, config().batch)),
        streams_(static_cast<size_t>(config().batch), TextStream(&corpus())),
        random_(config().seed),
        names_{
            .amount = "tokens",
            .unit = "bits per byte",
            .train_column = "train_bpb",
            .held_out = {{"held_out_fresh_bpb", "from an empty state"},
                         {"held_out_carried_bpb",
                          carry_.empty() ? "consecutive segments" : "one long state"}},
        } {}

  const FigureNames& names() const override { return names_; }

  Loss Next(const TrainNetwork& network, int64_t /*step*/) override {
    at::Tensor input = at::empty({config().batch, config().segment}, at::kLong);
    at::Tensor target = at::empty({config().batch, config().segment}, at::kLong);
    int64_t bytes = 0;
    for (int64_t row = 0; row < config().batch; ++row) {
      // Without a state to carry, a stream that continues would only show neighbouring text in
      // turn.
      const bool restart = carry_.empty() || std::uniform_real_distribution<double>()(random_) <
                                                 config().restart_probability;
      bool restarted = false;
      const absl::Span<const int32_t> tokens =
          streams_[static_cast<size_t>(row)].Next(config().segment, restart, random_, &restarted);
      if (restarted) RestartStream(config().network, row, carry_);
      bytes += corpus().Bytes(tokens.subspan(1));
      std::copy(tokens.begin(), tokens.end() - 1, input.select(0, row).mutable_data_ptr<int64_t>());
      std::copy(tokens.begin() + 1, tokens.end(),
                target.select(0, row).mutable_data_ptr<int64_t>());
    }
    const at::Tensor logits =
        network.Forward(input, &carry_, {.bf16 = config().bf16, .dropouts = DropoutsOf(config())});
    // As in EvaluateHeldOut, tokens that all stand for 0 bytes count as one byte.
    return {at::cross_entropy_loss(logits.flatten(0, 1), target.flatten()),
            static_cast<double>(amount_per_step()) /
                static_cast<double>(std::max<int64_t>(bytes, 1)) / std::numbers::ln2};
  }

  std::vector<double> Measure(const TrainNetwork& network, Extent extent) const override {
    const int64_t tokens = extent == Extent::kAll        ? corpus().held_out_tokens()
                           : extent == Extent::kOneBatch ? config().segment
                                                         : config().eval_tokens;
    const HeldOut held_out =
        EvaluateHeldOut(network, corpus(), config().segment, tokens, config().bf16);
    return {held_out.fresh, held_out.carried};
  }

  // Both figures count, because a served model gets short prompts and long streams.
  std::optional<double> Rank(const std::vector<double>& figures) const override {
    return (figures[0] + figures[1]) / 2;
  }

  void Save(SafetensorsFile& file) const override {
    for (size_t layer = 0; layer < carry_.size(); ++layer) {
      LayerCarry carry = carry_[layer];
      for (const auto& [name, tensor] : CarryTensors(carry)) {
        file.tensors[absl::StrCat("carry/", layer, "/", name)] = *tensor;
      }
    }
    std::ostringstream random, places;
    random << random_;
    for (const TextStream& stream : streams_) places << stream.text << ' ' << stream.offset << ' ';
    file.metadata["random"] = random.str();
    file.metadata["streams"] = places.str();
  }

  absl::Status Restore(const SafetensorsFile& file) override {
    bool complete = true;
    for (size_t layer = 0; layer < carry_.size(); ++layer) {
      for (const auto& [name, tensor] : CarryTensors(carry_[layer])) {
        complete =
            complete && RestoreTensor(file, absl::StrCat("carry/", layer, "/", name), *tensor);
      }
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
  NetworkCarry carry_;
  std::vector<TextStream> streams_;
  std::mt19937_64 random_;
  const FigureNames names_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Objective>> MakeNextTokens(const TrainConfig& config,
                                                          TokenizerSource tokenizer) {
  AFT_ASSIGN_OR_RETURN(Corpus corpus, ReadCorpus(config, tokenizer));
  return std::make_unique<NextTokens>(config, std::move(corpus));
}

}  // namespace aft
