// aft-train: trains a language model or an encoder, or measures one. ObjectiveKind lists what a
// network can learn.
//
//   aft-train --config train.json --out runs/first      trains, or resumes the run in that folder
//   aft-train --config train.json --evaluate DIR        prints the held-out figures of a checkpoint
//
// Exit codes: 0 done, 1 error, 2 bad command line, 130 stopped by Ctrl-C or SIGTERM (a training run
// has saved its state).

#include <unistd.h>

#include <CLI/App.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/command_line.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/network/check_tensors.h"
#include "model/train/corpus.h"
#include "model/train/evaluate.h"
#include "model/train/objective.h"
#include "model/train/run_tokenizer.h"
#include "model/train/trainer.h"
#include "model/train/wait_policy.h"

namespace {

constexpr int64_t kMostWindows = int64_t{1} << 20;

std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void RequestStop(int) { stop_requested = true; }

// A measurement has nothing to save. Without a handler, SIGTERM would not end the first process of
// a container.
void EndNow(int) { _exit(130); }

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "aft-train: %s\n", std::string(status.message()).c_str());
  return 1;
}

absl::StatusOr<aft::TrainNetwork> ReadNetwork(const std::string& dir) {
  AFT_ASSIGN_OR_RETURN(const aft::Checkpoint checkpoint, aft::ReadCheckpoint(dir));
  AFT_RETURN_IF_ERROR(
      aft::InFile(dir, aft::CheckTensors(checkpoint.config, checkpoint.tensors).status()));
  if (checkpoint.config.architecture == aft::Architecture::kMixer) {
    return absl::InvalidArgumentError(absl::StrCat(dir, ": is a bare mixer, not a network"));
  }
  const at::NoGradGuard no_grad;
  return aft::TrainNetwork(checkpoint.config, checkpoint.tensors);
}

// "held out: loss 0.1234, accuracy 0.9876"
std::string Sentence(const aft::FigureNames& names, const std::vector<double>& figures) {
  std::string sentence = "held out:";
  for (size_t i = 0; i < figures.size(); ++i) {
    absl::StrAppendFormat(&sentence, "%s %s %.4f", i == 0 ? "" : ",", names.held_out[i].name,
                          figures[i]);
  }
  return sentence;
}

int EvaluateObjective(aft::TrainConfig config, const aft::TrainNetwork& network,
                      const std::string& dir) {
  config.network = network.config();
  const auto objective =
      aft::MakeObjective(config, [&](const std::vector<absl::string_view>& /*training_texts*/) {
        return aft::LoadRunTokenizer(network.config(), dir);
      });
  if (!objective.ok()) return Fail(objective.status());
  const std::vector<double> figures = (*objective)->Measure(network, aft::Objective::Extent::kAll);
  std::printf("%s (%s)\n", Sentence((*objective)->names(), figures).c_str(),
              (*objective)->Describe().c_str());
  return 0;
}

int EvaluateTexts(const aft::TrainConfig& config, const aft::TrainNetwork& network,
                  const std::string& dir, int64_t windows) {
  const auto corpus =
      aft::ReadCorpus(config, [&](const std::vector<absl::string_view>& /*training_texts*/) {
        return aft::LoadRunTokenizer(network.config(), dir);
      });
  if (!corpus.ok()) return Fail(corpus.status());
  const aft::HeldOut all = aft::EvaluateHeldOut(network, *corpus, config.segment,
                                                corpus->held_out_tokens(), /*bf16=*/false);
  const bool carries = !aft::EmptyNetworkCarry(network.config(), 1).empty();
  std::printf("held-out bits per byte: %.4f from an empty state (segments of %ld), %.4f %s\n",
              all.fresh, static_cast<long>(config.segment), all.carried,
              carries ? "carried" : "in consecutive segments");
  // A signal ends the program without writing what is buffered.
  std::fflush(stdout);
  if (!carries) return 0;
  double base = 0;
  for (const int64_t position : {256, 4096, 32768}) {
    const auto figure = aft::EvaluateAtPosition(network, *corpus, position, windows, false);
    if (!figure.ok()) return Fail(figure.status());
    const double bits = *figure;
    if (base == 0) base = bits;
    std::printf("the same text at position %6ld: %.5f (%+.3f %%)\n", static_cast<long>(position),
                bits, 100 * (bits / base - 1));
    std::fflush(stdout);
  }
  return 0;
}

int Evaluate(const aft::TrainConfig& config, const std::string& dir, int64_t windows) {
  const auto network = ReadNetwork(dir);
  if (!network.ok()) return Fail(network.status());
  const aft::NetworkConfig& have = network->config();
  const aft::NetworkConfig& want = config.network;
  if (have.architecture != want.architecture || have.labels != want.labels ||
      have.vocabulary_head != want.vocabulary_head || have.mixer.grid != want.mixer.grid) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(dir, ": has another architecture or another head than the config's network")));
  }
  if (!config.learns_images()) {
    const absl::Status fits = aft::CheckSegment(config.segment, have);
    if (!fits.ok()) return Fail(aft::InFile(dir, fits));
  }
  if (config.objective == aft::ObjectiveKind::kMaskedTokens &&
      config.mask_token >= have.vocab_size) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(dir, ": mask_token: must be below the network's vocab_size, ", have.vocab_size,
                     ", got ", config.mask_token)));
  }
  if (config.objective != aft::ObjectiveKind::kNextTokens) {
    return EvaluateObjective(config, *network, dir);
  }
  return EvaluateTexts(config, *network, dir, windows);
}

void Announce(const aft::TrainConfig& config, const aft::Trainer& trainer) {
  const auto steps = static_cast<long>(trainer.objective().total_steps());
  if (trainer.step() >= steps) {
    std::fprintf(stderr, "aft-train: nothing to do: all %ld steps are done\n", steps);
    return;
  }
  std::fprintf(stderr, "aft-train: %ld weights, %s; %ld steps, %s step %ld\n",
               static_cast<long>(aft::CountParameters(config.network)),
               trainer.objective().Describe().c_str(), steps,
               trainer.step() == 0 ? "from" : "resuming at", static_cast<long>(trainer.step()));
  if (!trainer.new_tensors().empty()) {
    std::fprintf(stderr,
                 "aft-train: these tensors are new, because %s has none of that shape: %s\n",
                 config.initial.c_str(), absl::StrJoin(trainer.new_tensors(), ", ").c_str());
  }
  if (!trainer.dropped_tensors().empty()) {
    std::fprintf(stderr, "aft-train: these tensors of %s are not used: %s\n",
                 config.initial.c_str(), absl::StrJoin(trainer.dropped_tensors(), ", ").c_str());
  }
}

std::string Duration(double seconds) {
  return seconds < 120 ? absl::StrFormat("%.0f s", seconds)
                       : absl::StrFormat("%.0f min", seconds / 60);
}

int Train(const aft::TrainConfig& config, const std::string& out) {
  auto trainer = aft::Trainer::Create(config, out);
  if (!trainer.ok()) return Fail(trainer.status());
  Announce(config, *trainer);
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const aft::FigureNames& names = trainer->objective().names();
  constexpr int kFirstShown = 5;  // the speed of the first steps says little about the others
  int steps = 0;
  const absl::Status status = trainer->Run(
      stop_requested,
      [&](const aft::Trainer::Progress& p) {
        ++steps;
        if (steps < kFirstShown) return;
        if (!terminal && steps != kFirstShown && p.step % 50 != 0) return;
        std::fprintf(stderr, "%sstep %ld/%ld  %ld %s  %.3f %s  %.0f %s/s  ETA %s%s",
                     terminal ? "\r" : "", static_cast<long>(p.step),
                     static_cast<long>(p.total_steps), static_cast<long>(p.amount),
                     names.amount.c_str(), p.train_loss, names.unit.c_str(), p.amount_per_second,
                     names.amount.c_str(), Duration(p.eta_seconds).c_str(),
                     terminal ? "   " : "\n");
      },
      [&](const aft::CurvePoint& p, bool kept) {
        std::fprintf(stderr, "%seval step %ld: train (mean since the last evaluation) %.3f, %s%s\n",
                     terminal ? "\n" : "", static_cast<long>(p.step), p.train,
                     Sentence(names, p.held_out).c_str(), kept ? " (saved)" : "");
      });
  if (!status.ok()) return Fail(status);
  if (trainer->step() < trainer->objective().total_steps()) {
    std::fprintf(stderr, "\naft-train: stopped at step %ld, saved; the same command resumes it\n",
                 static_cast<long>(trainer->step()));
    return 130;
  }
  // There is none if the run was stopped before its first evaluation and then made shorter.
  if (!std::filesystem::exists(out + "/" + aft::kWeightsFileName)) {
    return Fail(absl::FailedPreconditionError(
        absl::StrCat(out, ": has no checkpoint yet, because no evaluation was made; a run of more ",
                     "than ", trainer->step(), " steps makes one at its end")));
  }
  std::fprintf(stderr, "aft-train: serve it: aft-server --model %s\n", out.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): it ends the program
  aft::WaitPassively(argv, execv);
  std::string config_file;
  std::string out;
  std::string evaluate;
  int64_t windows = 64;
  const std::unique_ptr<CLI::App> owner =
      aft::MakeApp("Trains a language model or an encoder, or measures a checkpoint.", "aft-train");
  CLI::App& app = *owner;
  app.option_defaults()->take_last();
  app.add_option("--config", config_file,
                 "Training config (JSON); docs/models.md describes its fields")
      ->type_name("FILE")
      ->required();
  CLI::Option* const train =
      app.add_option("--out", out,
                     "Train. The folder gets the checkpoint, the resume file and the curve. A run "
                     "that it holds already is continued")
          ->type_name("DIR");
  app.add_option("--evaluate", evaluate, "Measure the checkpoint in this folder instead")
      ->type_name("DIR")
      ->excludes(train);
  app.add_option("--windows", windows,
                 "With --evaluate: windows of 1,024 held-out tokens for the figures by position")
      ->check(CLI::Range(int64_t{1}, kMostWindows))
      ->capture_default_str();
  app.footer(
      "Threads that wait do not spin, so that other work can share the cores; set "
      "OMP_WAIT_POLICY=active to let them spin\n"
      "Exit codes: 0 done, 1 error, 2 wrong usage, 130 stopped by a signal (a training run has "
      "saved its state)");
  if (const auto code = aft::ParseCommandLine(app, argc, argv, {.usage_code = 2})) return *code;
  if (out.empty() && evaluate.empty()) {
    app.exit(CLI::RequiredError("--out DIR or --evaluate DIR"));
    return 2;
  }
  const auto config = aft::ReadTrainConfig(config_file);
  if (!config.ok()) return Fail(config.status());
  if (config->threads > 0) at::set_num_threads(static_cast<int>(config->threads));
  const auto on_signal = out.empty() ? EndNow : RequestStop;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  try {
    return out.empty() ? Evaluate(*config, evaluate, windows) : Train(*config, out);
  } catch (const std::exception& error) {  // LibTorch reports by exception
    return Fail(absl::InternalError(error.what()));
  }
}
