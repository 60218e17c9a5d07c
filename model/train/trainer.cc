#include "model/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <numbers>
#include <sstream>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/empty.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/train/evaluate.h"
#include "model/train/run_tokenizer.h"

namespace aft {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string ResumePath(const std::string& out_dir) { return out_dir + "/resume.safetensors"; }

}  // namespace

Trainer::Trainer(TrainConfig config, std::string out_dir, std::unique_ptr<Corpus> corpus)
    : config_(std::move(config)),
      out_dir_(std::move(out_dir)),
      corpus_(std::move(corpus)),
      network_(config_.network, config_.seed, config_.weight_spread),
      optimizer_(config_.network, network_.parameters()),
      carry_(EmptyNetworkCarry(config_.network, config_.batch)),
      streams_(static_cast<size_t>(config_.batch), TextStream(corpus_.get())),
      random_(config_.seed) {}

int64_t Trainer::total_steps() const {
  const int64_t tokens_per_step = config_.batch * config_.segment;
  return (config_.total_tokens + tokens_per_step - 1) / tokens_per_step;
}

absl::StatusOr<Trainer> Trainer::Create(TrainConfig config, std::string out_dir) {
  AFT_ASSIGN_OR_RETURN(const std::vector<TextFile> files,
                       ReadTextFiles(config.texts, config.held_out));
  std::error_code error;
  std::filesystem::create_directories(out_dir, error);
  if (error) return absl::InternalError(absl::StrCat(out_dir, ": ", error.message()));
  const bool resumed = std::filesystem::exists(ResumePath(out_dir));
  AFT_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer,
                       RunTokenizer(config, files, out_dir, resumed));
  AFT_ASSIGN_OR_RETURN(Corpus corpus, MakeCorpus(files, *tokenizer, config.segment + 1));
  Trainer trainer(std::move(config), std::move(out_dir),
                  std::make_unique<Corpus>(std::move(corpus)));
  if (resumed) AFT_RETURN_IF_ERROR(trainer.Resume());
  return trainer;
}

double Trainer::TrainStep() {
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
    bytes += corpus_->Bytes(tokens.subspan(1));
    std::copy(tokens.begin(), tokens.end() - 1, input.select(0, row).mutable_data_ptr<int64_t>());
    std::copy(tokens.begin() + 1, tokens.end(), target.select(0, row).mutable_data_ptr<int64_t>());
  }
  const at::Tensor logits =
      network_.Forward(input, &carry_, {.bf16 = config_.bf16, .dropout = config_.dropout});
  const at::Tensor loss =
      at::cross_entropy_loss(logits.reshape({-1, logits.size(2)}), target.reshape({-1}));
  const double bits = loss.item<double>() / std::numbers::ln2 *
                      static_cast<double>(config_.batch * config_.segment) /
                      static_cast<double>(bytes);
  if (!std::isfinite(bits)) return bits;  // leaves the weights as they are
  loss.backward();
  optimizer_.Step(config_, optimizer_.steps, total_steps(), network_.parameters());
  return bits;
}

absl::Status Trainer::Run(const std::atomic<bool>& stop, const ProgressFn& on_progress,
                          const EvalFn& on_eval) {
  const Clock::time_point start = Clock::now();
  const int64_t first_step = step();
  const int64_t tokens_per_step = config_.batch * config_.segment;
  double bits_sum = 0;
  int64_t bits_count = 0;
  while (step() < total_steps() && !stop) {
    const double bits = TrainStep();
    if (!std::isfinite(bits)) {
      return absl::InternalError(absl::StrFormat(
          "the loss is not finite at step %d; the last good state is in %s", step(), out_dir_));
    }
    bits_sum += bits;
    ++bits_count;
    const double elapsed = SecondsSince(start);
    const double rate = static_cast<double>((step() - first_step) * tokens_per_step) / elapsed;
    on_progress(
        {.step = step(),
         .total_steps = total_steps(),
         .tokens = step() * tokens_per_step,
         .train_bpb = bits,
         .tokens_per_second = rate,
         .eta_seconds = static_cast<double>((total_steps() - step()) * tokens_per_step) / rate});
    if (step() % config_.eval_every_steps == 0 || step() == total_steps()) {
      AFT_RETURN_IF_ERROR(
          Evaluate(bits_sum / static_cast<double>(bits_count), seconds_ + elapsed, on_eval));
      bits_sum = 0;
      bits_count = 0;
      AFT_RETURN_IF_ERROR(Save());
    }
  }
  seconds_ += SecondsSince(start);
  return Save();
}

absl::Status Trainer::Evaluate(double train_bpb, double seconds, const EvalFn& on_eval) {
  const HeldOut held_out =
      EvaluateHeldOut(network_, *corpus_, config_.segment, config_.eval_tokens, config_.bf16);
  const CurvePoint point{.step = step(),
                         .tokens = step() * config_.batch * config_.segment,
                         .seconds = seconds,
                         .train = train_bpb,
                         .fresh = held_out.fresh,
                         .carried = held_out.carried,
                         .learning_rate = AdamW::LearningRate(config_, step(), total_steps())};
  curve_.push_back(point);
  // A served model meets both: short prompts and long streams.
  const double score = (held_out.fresh + held_out.carried) / 2;
  const bool best = score < best_;
  if (best) {
    best_ = score;
    AFT_RETURN_IF_ERROR(WriteCheckpoint(out_dir_, config_.network, network_.parameters()));
  }
  AFT_RETURN_IF_ERROR(WriteCurveCsv(out_dir_ + "/curve.csv", curve_));
  AFT_RETURN_IF_ERROR(WriteCurveSvg(out_dir_ + "/curve.svg", curve_));
  on_eval(point, best);
  return absl::OkStatus();
}

absl::Status Trainer::Save() const {
  TensorMap tensors;
  for (const auto& [name, tensor] : network_.parameters()) {
    tensors["weights/" + name] = tensor.detach();
    tensors["first/" + name] = optimizer_.first.at(name);
    tensors["second/" + name] = optimizer_.second.at(name);
  }
  for (size_t layer = 0; layer < carry_.size(); ++layer) {
    const std::string prefix = absl::StrCat("carry/", layer, "/");
    const AftCarry& carry = carry_[layer];
    tensors[prefix + "k"] = carry.k;
    tensors[prefix + "v"] = carry.v;
  }
  std::ostringstream random, places;
  random << random_;
  for (const TextStream& stream : streams_) places << stream.text << ' ' << stream.offset << ' ';
  return WriteSafetensors(ResumePath(out_dir_), tensors,
                          {{"network", FormatNetworkConfig(config_.network)},
                           {"batch", absl::StrCat(config_.batch)},
                           {"steps", absl::StrCat(optimizer_.steps)},
                           {"seconds", absl::StrCat(seconds_)},
                           {"best", absl::StrCat(best_)},
                           {"random", random.str()},
                           {"streams", places.str()}});
}

absl::Status Trainer::Resume() {
  AFT_ASSIGN_OR_RETURN(SafetensorsFile file, ReadSafetensors(ResumePath(out_dir_)));
  if (file.metadata["network"] != FormatNetworkConfig(config_.network) ||
      file.metadata["batch"] != absl::StrCat(config_.batch)) {
    return absl::FailedPreconditionError(
        absl::StrCat(ResumePath(out_dir_),
                     ": belongs to a run with another network or batch; choose another --out"));
  }
  const at::NoGradGuard no_grad;
  bool complete = true;
  const auto restore = [&](const std::string& name, at::Tensor& tensor) {
    const auto it = file.tensors.find(name);
    complete = complete && it != file.tensors.end() && it->second.sizes() == tensor.sizes();
    if (complete) tensor.copy_(it->second);
  };
  for (auto& [name, tensor] : network_.parameters()) {
    restore("weights/" + name, tensor);
    restore("first/" + name, optimizer_.first.at(name));
    restore("second/" + name, optimizer_.second.at(name));
  }
  for (size_t layer = 0; layer < carry_.size(); ++layer) {
    const std::string prefix = absl::StrCat("carry/", layer, "/");
    restore(prefix + "k", carry_[layer].k);
    restore(prefix + "v", carry_[layer].v);
  }
  std::istringstream random(file.metadata["random"]), places(file.metadata["streams"]);
  random >> random_;
  for (TextStream& stream : streams_) places >> stream.text >> stream.offset;
  complete = complete && random && places &&
             absl::SimpleAtoi(file.metadata["steps"], &optimizer_.steps) && optimizer_.steps >= 0 &&
             absl::SimpleAtod(file.metadata["seconds"], &seconds_) && std::isfinite(seconds_) &&
             absl::SimpleAtod(file.metadata["best"], &best_) && std::isfinite(best_);
  if (!complete)
    return absl::DataLossError(absl::StrCat(ResumePath(out_dir_), ": incomplete or damaged"));
  if (!std::all_of(streams_.begin(), streams_.end(), std::mem_fn(&TextStream::IsInCorpus))) {
    return absl::FailedPreconditionError(
        absl::StrCat(ResumePath(out_dir_),
                     ": stands at a place that the texts do not have: it belongs to a run with ",
                     "other texts, or is damaged; choose another --out"));
  }
  AFT_ASSIGN_OR_RETURN(curve_, ReadCurve(out_dir_ + "/curve.csv"));
  std::erase_if(curve_, [this](const CurvePoint& point) { return point.step > step(); });
  return absl::OkStatus();
}

}  // namespace aft
