// aft-train: trains a causal language model from text files, or a classifier from images; or
// measures one.
//
//   aft-train --config train.json --out runs/first      train; texts: goes on if there is a run
//   aft-train --config train.json --evaluate DIR        held-out bits per byte, or accuracy, of a
//                                                       checkpoint
//
// Exit codes: 0 done, 1 error, 2 bad command line, 130 stopped by Ctrl-C or SIGTERM (state saved).

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/network/check_tensors.h"
#include "model/tokenizer/tokenizers.h"
#include "model/train/classifier.h"
#include "model/train/evaluate.h"
#include "model/train/trainer.h"

ABSL_FLAG(std::string, config, "",
          "training config file (JSON); model/train/train_config.h documents it");
ABSL_FLAG(std::string, out, "", "folder for the checkpoint, the resume file and the curve");
ABSL_FLAG(std::string, evaluate, "", "checkpoint folder to measure instead of training");
ABSL_FLAG(int64_t, windows, 64,
          "--evaluate: windows of 1,024 held-out tokens for the figures by position");

namespace {

constexpr int64_t kMostWindows = int64_t{1} << 20;

std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void RequestStop(int) { stop_requested = true; }

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "aft-train: %s\n", std::string(status.message()).c_str());
  return 1;
}

bool OfImages(const aft::TrainConfig& config) { return !config.images.empty(); }

absl::StatusOr<aft::TrainNetwork> ReadNetwork(const std::string& dir) {
  AFT_ASSIGN_OR_RETURN(const aft::Checkpoint checkpoint, aft::ReadCheckpoint(dir));
  AFT_RETURN_IF_ERROR(
      aft::InFile(dir, aft::CheckTensors(checkpoint.config, checkpoint.tensors).status()));
  if (aft::HeadRows(checkpoint.config) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(dir, ": the network has no head"));
  }
  aft::TrainNetwork network(checkpoint.config, /*seed=*/0);
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : network.parameters()) tensor.copy_(checkpoint.tensors.at(name));
  return network;
}

int EvaluateImages(aft::TrainConfig config, const aft::TrainNetwork& network) {
  config.network = network.config();
  const auto images = aft::ReadSplit(config);
  if (!images.ok()) return Fail(images.status());
  const aft::ClassifierScore score = aft::MeasureClassifier(network, images->held_out);
  std::printf("%ld images held out: accuracy %.4f, loss %.4f\n",
              static_cast<long>(images->held_out.count()), score.accuracy, score.loss);
  return 0;
}

int TrainImages(const aft::TrainConfig& config, const std::string& out) {
  const auto images = aft::ReadSplit(config);
  if (!images.ok()) return Fail(images.status());
  std::fprintf(stderr, "aft-train: %ld weights, %ld training images, %ld held out; %ld epochs\n",
               static_cast<long>(aft::CountParameters(config.network)),
               static_cast<long>(images->train.count()),
               static_cast<long>(images->held_out.count()), static_cast<long>(config.epochs));
  int64_t done = 0;
  const absl::Status status =
      aft::TrainClassifier(config, *images, out, stop_requested, [&](const aft::Epoch& epoch) {
        done = epoch.number;
        std::fprintf(stderr, "epoch %ld, %.0f s: train %.4f; held out %.4f, accuracy %.4f\n",
                     static_cast<long>(epoch.number), epoch.seconds, epoch.train_loss,
                     epoch.held_out.loss, epoch.held_out.accuracy);
      });
  if (!status.ok()) return Fail(status);
  if (done == config.epochs) return 0;
  std::fprintf(stderr, "aft-train: stopped after epoch %ld, saved\n", static_cast<long>(done));
  return 130;
}

// The config's texts as tokens of the checkpoint in `dir`.
absl::StatusOr<aft::Corpus> ReadCorpus(const aft::TrainConfig& config,
                                       const aft::NetworkConfig& network, const std::string& dir) {
  AFT_ASSIGN_OR_RETURN(const auto tokenizer,
                       aft::LoadTokenizer(network.tokenizer, dir, network.vocab_size));
  AFT_ASSIGN_OR_RETURN(const auto files, aft::ReadTextFiles(config.texts, config.held_out));
  return aft::MakeCorpus(files, *tokenizer, config.segment + 1);
}

int EvaluateTexts(const aft::TrainConfig& config, const aft::TrainNetwork& network,
                  const std::string& dir, int64_t windows) {
  const auto corpus = ReadCorpus(config, network.config(), dir);
  if (!corpus.ok()) return Fail(corpus.status());
  const aft::HeldOut all = aft::EvaluateHeldOut(network, *corpus, config.segment,
                                                corpus->held_out_tokens(), /*bf16=*/false);
  std::printf("held-out bits per byte: %.4f from an empty state (segments of %ld), %.4f carried\n",
              all.fresh, static_cast<long>(config.segment), all.carried);
  if (aft::EmptyNetworkCarry(network.config(), 1).empty()) return 0;  // segments only
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
  const aft::Architecture architecture = network->config().architecture;
  if (architecture != config.network.architecture) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(dir, ": is of another architecture than the config's network")));
  }
  if (OfImages(config)) return EvaluateImages(config, *network);
  const absl::Status fits = aft::CheckSegment(config.segment, network->config());
  if (!fits.ok()) return Fail(aft::InFile(dir, fits));
  return EvaluateTexts(config, *network, dir, windows);
}

int TrainTexts(const aft::TrainConfig& config, const std::string& out) {
  auto trainer = aft::Trainer::Create(config, out);
  if (!trainer.ok()) return Fail(trainer.status());
  std::fprintf(
      stderr, "aft-train: %ld weights, %ld training tokens, %ld held out; %ld steps, %s step %ld\n",
      static_cast<long>(aft::CountParameters(config.network)),
      static_cast<long>(trainer->corpus().train_tokens()),
      static_cast<long>(trainer->corpus().held_out_tokens()),
      static_cast<long>(trainer->total_steps()), trainer->step() == 0 ? "from" : "resuming at",
      static_cast<long>(trainer->step()));
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const absl::Status status = trainer->Run(
      stop_requested,
      [terminal](const aft::Trainer::Progress& p) {
        if (!terminal && p.step % 50 != 0) return;
        std::fprintf(stderr,
                     "%sstep %ld/%ld  %.2f M tokens  %.3f bits/byte  %.0f tokens/s  ETA %.0f min%s",
                     terminal ? "\r" : "", static_cast<long>(p.step),
                     static_cast<long>(p.total_steps), static_cast<double>(p.tokens) / 1e6,
                     p.train_bpb, p.tokens_per_second, p.eta_seconds / 60, terminal ? "   " : "\n");
      },
      [terminal](const aft::CurvePoint& p, bool best) {
        std::fprintf(stderr, "%seval step %ld: train %.3f, held out %.4f fresh, %.4f carried%s\n",
                     terminal ? "\n" : "", static_cast<long>(p.step), p.train, p.fresh, p.carried,
                     best ? " (best, saved)" : "");
      });
  if (!status.ok()) return Fail(status);
  if (trainer->step() < trainer->total_steps()) {
    std::fprintf(stderr, "\naft-train: stopped at step %ld, saved; the same command goes on\n",
                 static_cast<long>(trainer->step()));
    return 130;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("aft-train --config FILE (--out DIR | --evaluate DIR)");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  const std::string out = absl::GetFlag(FLAGS_out);
  const std::string evaluate = absl::GetFlag(FLAGS_evaluate);
  if (rest.size() != 1 || absl::GetFlag(FLAGS_config).empty() || out.empty() == evaluate.empty()) {
    std::fprintf(stderr, "aft-train: give --config FILE and one of --out DIR, --evaluate DIR\n");
    return 2;
  }
  const int64_t windows = absl::GetFlag(FLAGS_windows);
  if (windows < 1 || windows > kMostWindows) {
    std::fprintf(stderr, "aft-train: --windows must be in [1, %ld]\n",
                 static_cast<long>(kMostWindows));
    return 2;
  }
  const auto config = aft::ReadTrainConfig(absl::GetFlag(FLAGS_config));
  if (!config.ok()) return Fail(config.status());
  if (config->threads > 0) at::set_num_threads(config->threads);
  std::signal(SIGINT, RequestStop);
  std::signal(SIGTERM, RequestStop);
  try {
    return out.empty()         ? Evaluate(*config, evaluate, windows)
           : OfImages(*config) ? TrainImages(*config, out)
                               : TrainTexts(*config, out);
  } catch (const std::exception& error) {  // LibTorch reports by exception
    return Fail(absl::InternalError(error.what()));
  }
}
