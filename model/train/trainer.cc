#include "model/train/trainer.h"

#include <dirent.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "ATen/Context.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/atomic_file.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/train/run_tokenizer.h"
#include "model/train/start_values.h"

namespace aft {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string ResumePath(const std::string& out_dir) { return out_dir + "/resume.safetensors"; }

// Dropout draws from LibTorch's global generator. Each step seeds it anew, so that a resumed run
// draws the same numbers as one that was not stopped.
void SeedDropout(uint64_t seed, int64_t step) {
  at::manual_seed(SeededBy(seed, static_cast<uint64_t>(step))());
}

// Two runs in one folder would replace each other's files. The lock ends with the returned object,
// or with the process.
absl::StatusOr<std::shared_ptr<void>> LockFolder(const std::string& path) {
  DIR* const folder = opendir(path.c_str());
  if (folder == nullptr) return absl::ErrnoToStatus(errno, path);
  std::shared_ptr<void> lock(folder, closedir);
  // A file system without locks gives another error, and the run then continues without one.
  if (flock(dirfd(folder), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": another aft-train works in this folder"));
  }
  return lock;
}

// Whether a tensor is one of those that `initial` and the network must both have or both lack.
bool IsOfLayers(const std::string& name) {
  return absl::StartsWith(name, "layers.") || absl::StartsWith(name, "norm.") ||
         absl::StartsWith(name, "embed_norm.");
}

// The settings that decide what the held-out figures measure, by their keys in the config. Those
// that the objective does not use have their defaults.
std::map<std::string, std::string> FigureSettings(const TrainConfig& config) {
  std::map<std::string, std::string> settings = {
      {"segment", absl::StrCat(config.segment)},
      {"eval_tokens", absl::StrCat(config.eval_tokens)},
      {"eval_examples", absl::StrCat(config.eval_examples)},
      {"mask_probability", absl::StrCat(config.mask_probability)},
      {"mask_token", absl::StrCat(config.mask_token)},
      {"least_tokens", absl::StrCat(config.least_tokens)},
      {"temperature", absl::StrCat(config.temperature)}};
  // The held-out tokens that are masked, and the stretches of texts, are drawn with the seed.
  if (config.objective == ObjectiveKind::kMaskedTokens || config.least_tokens > 0) {
    settings["seed"] = absl::StrCat(config.seed);
  }
  return settings;
}

}  // namespace

Trainer::Trainer(TrainConfig config, std::string out_dir, std::shared_ptr<void> lock,
                 std::unique_ptr<Objective> objective)
    : config_(std::move(config)),
      out_dir_(std::move(out_dir)),
      lock_(std::move(lock)),
      objective_(std::move(objective)),
      data_hash_(absl::StrCat(objective_->DataHash())),
      network_(config_.network, StartValues(config_.network, StartOptionsOf(config_))),
      optimizer_(config_.network, network_.parameters()) {}

absl::StatusOr<Trainer> Trainer::Create(TrainConfig config, std::string out_dir) {
  std::error_code error;
  std::filesystem::create_directories(out_dir, error);
  if (error) return absl::InternalError(absl::StrCat(out_dir, ": ", error.message()));
  AFT_ASSIGN_OR_RETURN(std::shared_ptr<void> lock, LockFolder(out_dir));
  for (const std::string& path : {ResumePath(out_dir), out_dir + "/" + kWeightsFileName}) {
    RemoveAbandoned(path + ".tmp.", "aft-train");
  }
  // Otherwise the first evaluation would notice a folder that takes no files, and the work until
  // then would be lost. If the process is killed here, the next run removes the file.
  const std::string probe = ResumePath(out_dir) + ".tmp.probe";
  AFT_RETURN_IF_ERROR(WriteFileAtomically(probe, {"probe"}));
  std::filesystem::remove(probe, error);
  if (error) return absl::ErrnoToStatus(error.value(), probe);
  const bool resumed = std::filesystem::exists(ResumePath(out_dir));
  AFT_ASSIGN_OR_RETURN(
      std::unique_ptr<Objective> objective,
      MakeObjective(config, [&](const std::vector<absl::string_view>& training_texts) {
        return RunTokenizer(config, training_texts, out_dir, resumed);
      }));
  Trainer trainer(std::move(config), std::move(out_dir), std::move(lock), std::move(objective));
  if (resumed) {
    AFT_RETURN_IF_ERROR(trainer.Resume());
  } else if (!trainer.config_.initial.empty()) {
    AFT_RETURN_IF_ERROR(trainer.TakeInitialWeights());
  }
  return trainer;
}

absl::Status Trainer::TakeInitialWeights() {
  const auto file = ReadCheckpoint(config_.initial);
  if (!file.ok()) return InFile("initial", file.status());
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : network_.parameters()) {
    const auto given = file->tensors.find(name);
    if (given != file->tensors.end() && given->second.sizes() == tensor.sizes()) {
      tensor.copy_(given->second);
    } else {
      new_tensors_.push_back(name);
    }
  }
  for (const auto& [name, tensor] : file->tensors) {
    if (network_.parameters().contains(name)) continue;
    if (!IsOfLayers(name)) {
      dropped_tensors_.push_back(name);
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("initial: ", config_.initial, " has ", name,
                     ", for which the network has no place; only heads, embeddings and positions ",
                     "may differ"));
  }
  const auto misfit = std::find_if(new_tensors_.begin(), new_tensors_.end(), IsOfLayers);
  if (misfit == new_tensors_.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("initial: ", config_.initial, " has no ", *misfit,
                   " of the shape that the network asks for; only heads, embeddings and positions ",
                   "may differ"));
}

double Trainer::TrainStep() {
  saved_ = false;
  SeedDropout(config_.seed, step());
  const Objective::Loss loss = objective_->Next(network_, step());
  const double figure = loss.nats.item<double>() * loss.scale;
  if (!std::isfinite(figure)) return figure;
  loss.nats.backward();
  const double norm =
      optimizer_.Step(config_, step(), objective_->total_steps(), network_.parameters());
  return std::isfinite(norm) ? figure : norm;
}

absl::Status Trainer::NotFinite() const {
  const bool saved = std::filesystem::exists(ResumePath(out_dir_));
  return absl::InternalError(absl::StrCat(
      "the loss or its gradient is not finite at step ", step(),
      saved ? absl::StrCat("; the last good state is in ", out_dir_) : "; nothing was saved yet",
      "; a lower learning_rate may help"));
}

absl::Status Trainer::Run(const std::atomic<bool>& stop, const ProgressFn& on_progress,
                          const EvalFn& on_eval) {
  const Clock::time_point start = Clock::now();
  const int64_t first_step = step();
  const int64_t total_steps = objective_->total_steps();
  const int64_t amount_per_step = objective_->amount_per_step();
  int64_t eval_every = objective_->eval_every_steps();
  // A short run has a curve too, and a long one loses at most 500 steps when it is killed.
  if (eval_every == 0) eval_every = std::clamp<int64_t>(total_steps / 20, 1, 500);
  double loss_sum = 0;
  int64_t loss_count = 0;
  while (step() < total_steps && !stop) {
    const double loss = TrainStep();
    if (!std::isfinite(loss)) return NotFinite();
    loss_sum += loss;
    ++loss_count;
    const double elapsed = SecondsSince(start);
    const double rate = static_cast<double>((step() - first_step) * amount_per_step) / elapsed;
    on_progress(
        {.step = step(),
         .total_steps = total_steps,
         .amount = step() * amount_per_step,
         .train_loss = loss,
         .amount_per_second = rate,
         .eta_seconds = static_cast<double>((total_steps - step()) * amount_per_step) / rate});
    if (step() % eval_every == 0 || step() == total_steps) {
      AFT_RETURN_IF_ERROR(
          Evaluate(loss_sum / static_cast<double>(loss_count), seconds_ + elapsed, on_eval));
      loss_sum = 0;
      loss_count = 0;
      AFT_RETURN_IF_ERROR(Save(seconds_ + SecondsSince(start)));
    }
  }
  // After a stop there may be steps that no evaluation has measured. A whole evaluation could take
  // too long: `docker stop`, for example, kills the process after 10 s.
  if (loss_count > 0) AFT_RETURN_IF_ERROR(Measure(Objective::Extent::kOneBatch).status());
  seconds_ += SecondsSince(start);
  return saved_ ? absl::OkStatus() : Save(seconds_);
}

absl::StatusOr<std::vector<double>> Trainer::Measure(Objective::Extent extent) const {
  std::vector<double> figures = objective_->Measure(network_, extent);
  // The last step may have ruined the weights, which no loss of a step has shown yet.
  for (const double figure : figures) {
    if (!std::isfinite(figure)) return NotFinite();
  }
  return figures;
}

absl::Status Trainer::Evaluate(double train_loss, double seconds, const EvalFn& on_eval) {
  AFT_ASSIGN_OR_RETURN(std::vector<double> held_out, Measure(Objective::Extent::kEvaluation));
  CurvePoint point{
      .step = step(),
      .amount = step() * objective_->amount_per_step(),
      .seconds = seconds,
      .train = train_loss,
      .held_out = std::move(held_out),
      .learning_rate = AdamW::LearningRate(config_, step(), objective_->total_steps())};
  const std::optional<double> rank = objective_->Rank(point.held_out);
  const bool kept = !rank || *rank < best_;
  if (kept) {
    best_ = rank.value_or(best_);
    AFT_RETURN_IF_ERROR(WriteCheckpoint(out_dir_, config_.network, network_.parameters()));
  }
  curve_.push_back(std::move(point));
  AFT_RETURN_IF_ERROR(WriteCurveCsv(out_dir_ + "/curve.csv", objective_->names(), curve_));
  AFT_RETURN_IF_ERROR(WriteCurveSvg(out_dir_ + "/curve.svg", objective_->names(), curve_));
  on_eval(curve_.back(), kept);
  return absl::OkStatus();
}

absl::Status Trainer::Save(double seconds) {
  SafetensorsFile file;
  for (const auto& [name, tensor] : network_.parameters()) {
    file.tensors["weights/" + name] = tensor.detach();
    file.tensors["first/" + name] = optimizer_.first.at(name);
    file.tensors["second/" + name] = optimizer_.second.at(name);
  }
  file.metadata = {{"network", FormatNetworkConfig(config_.network)},
                   {"objective", ObjectiveName(config_.objective)},
                   {"batch", absl::StrCat(config_.batch)},
                   {"data", data_hash_},
                   {"steps", absl::StrCat(optimizer_.steps)},
                   {"seconds", absl::StrCat(seconds)},
                   {"best", absl::StrFormat("%.17g", best_)}};
  file.metadata.merge(FigureSettings(config_));
  objective_->Save(file);
  AFT_RETURN_IF_ERROR(WriteSafetensors(ResumePath(out_dir_), file.tensors, file.metadata));
  saved_ = true;
  return absl::OkStatus();
}

absl::Status Trainer::Resume() {
  const std::string path = ResumePath(out_dir_);
  AFT_ASSIGN_OR_RETURN(SafetensorsFile file, ReadSafetensors(path));
  if (file.metadata["network"] != FormatNetworkConfig(config_.network) ||
      file.metadata["objective"] != ObjectiveName(config_.objective) ||
      file.metadata["batch"] != absl::StrCat(config_.batch)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": belongs to a run with another network, objective or batch; choose another --out"));
  }
  // Files of earlier versions have no hash of the data.
  const std::string& data_hash = file.metadata["data"];
  if (!data_hash.empty() && data_hash != data_hash_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     ": belongs to a run with other training or held-out data; choose "
                     "another --out"));
  }
  for (const auto& [key, value] : FigureSettings(config_)) {
    const std::string& before = file.metadata[key];  // as for "data"
    if (before.empty() || before == value) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": belongs to a run with ", key, " ", before, ", not ", value,
                     ", so its held-out figures cannot be compared; choose another --out"));
  }
  bool complete = true;
  for (auto& [name, tensor] : network_.parameters()) {
    complete = complete && RestoreTensor(file, "weights/" + name, tensor) &&
               RestoreTensor(file, "first/" + name, optimizer_.first.at(name)) &&
               RestoreTensor(file, "second/" + name, optimizer_.second.at(name));
  }
  complete = complete && absl::SimpleAtoi(file.metadata["steps"], &optimizer_.steps) &&
             optimizer_.steps >= 0 && absl::SimpleAtod(file.metadata["seconds"], &seconds_) &&
             std::isfinite(seconds_) && absl::SimpleAtod(file.metadata["best"], &best_) &&
             std::isfinite(best_);
  if (!complete) return absl::DataLossError(absl::StrCat(path, ": incomplete or damaged"));
  AFT_RETURN_IF_ERROR(InFile(path, objective_->Restore(file)));
  AFT_ASSIGN_OR_RETURN(curve_, ReadCurve(out_dir_ + "/curve.csv", objective_->names()));
  std::erase_if(curve_, [this](const CurvePoint& point) { return point.step > step(); });
  saved_ = true;
  return absl::OkStatus();
}

}  // namespace aft
