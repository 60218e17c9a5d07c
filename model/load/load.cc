#include "model/api/load.h"

#include <malloc.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/cpus.h"
#include "base/memory.h"
#include "base/status_macros.h"
#include "c10/core/InferenceMode.h"
#include "model/checkpoint/checkpoint.h"
#include "model/load/backend.h"
#include "model/load/initial_states.h"
#include "model/network/check_tensors.h"
#include "model/network/cpu_network.h"
#include "model/network/weight_bytes.h"
#include "model/runtime/cpu_encoder_runner.h"
#include "model/runtime/cpu_model_runner.h"
#include "model/runtime/torch_guard.h"
#include "model/tokenizer/tokenizers.h"

namespace aft {
namespace {

// N of "cuda:N"; kCpu for "cpu".
constexpr int kCpu = -1;
absl::StatusOr<int> DeviceIndex(const LoadOptions& options) {
  if (options.device == "cpu") return kCpu;
  absl::string_view number = options.device;
  int index = 0;
  if (absl::ConsumePrefix(&number, "cuda:") &&
      number.find_first_not_of("0123456789") == absl::string_view::npos &&
      absl::SimpleAtoi(number, &index)) {
    return index;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("device \"", options.device, "\": must be \"cpu\" or \"cuda:N\""));
}

bool Takes(int device, Number format) {
  return device == kCpu ? SpecOf(format).on_cpu : SpecOf(format).on_gpu;
}

absl::Status CheckWeightFormat(const LoadOptions& options, int device) {
  const std::vector<std::string> names = WeightFormatNames(/*on_gpu=*/device != kCpu);
  const std::string& name = options.weight_format;
  if (std::find(names.begin(), names.end(), name) != names.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("weight_format \"", name, "\": device \"",
                                                 options.device, "\" takes \"",
                                                 absl::StrJoin(names, "\", \""), "\""));
}

Number WeightFormat(const LoadOptions& options, int device, const CheckpointFile& checkpoint) {
  if (options.weight_format != "stored") return *NumberNamed(options.weight_format);
  return Takes(device, checkpoint.weight_format) ? checkpoint.weight_format : Number::kFp32;
}

absl::Status CheckOptions(const LoadOptions& options) {
  if (options.slots < 1) return absl::InvalidArgumentError("slots: must be at least 1");
  if (options.max_step_tokens < options.slots) {
    return absl::InvalidArgumentError(absl::StrCat("max_step_tokens: ", options.max_step_tokens,
                                                   " is less than slots, ", options.slots));
  }
  if (options.max_batch_rows < 1) {
    return absl::InvalidArgumentError("max_batch_rows: must be at least 1");
  }
  if (options.max_batch_tokens < options.max_batch_rows) {
    return absl::InvalidArgumentError(absl::StrCat("max_batch_tokens: ", options.max_batch_tokens,
                                                   " is less than max_batch_rows, ",
                                                   options.max_batch_rows));
  }
  if (options.intra_op_threads < 0) {
    return absl::InvalidArgumentError("intra_op_threads: must not be negative");
  }
  return absl::OkStatus();
}

// Sets the threads and CPUs of a CPU runner's options.
template <typename Options>
absl::Status PlaceThreads(const LoadOptions& options, Options& runner) {
  if (!options.cpus.empty()) {
    const absl::StatusOr<std::vector<int>> cpus = ParseCpus(options.cpus);
    if (!cpus.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("cpus: ", cpus.status().message()));
    }
    runner.cpus = *cpus;
  }
  runner.threads = options.intra_op_threads > 0 ? options.intra_op_threads
                   : runner.cpus.empty()        ? std::max(AvailableCpus() - 1, 1)
                                                : static_cast<int>(runner.cpus.size());
  runner.measure_threads = options.measure_threads;
  return absl::OkStatus();
}

// Adds the name of the weights' file to DATA_LOSS errors.
template <typename Runner>
absl::StatusOr<Runner> NamingTheFile(const LoadOptions& options, absl::StatusOr<Runner> runner) {
  if (runner.ok() || !absl::IsDataLoss(runner.status())) return runner;
  return absl::DataLossError(
      absl::StrCat(options.checkpoint_dir, "/", kWeightsFileName, ": ", runner.status().message()));
}

// The checks of memory come before the large allocations: beyond the limit the kernel would kill
// the process instead. This one comes before the tensors are read.
absl::StatusOr<std::unique_ptr<CpuNetwork>> LoadCpuNetwork(const CheckpointFile& checkpoint,
                                                           Number format) {
  const NetworkConfig& config = checkpoint.config;
  AFT_RETURN_IF_ERROR(CheckFormat(config, format));
  const int64_t tables = CountTableBytes(config);
  // The table of a layer exists twice while it is folded.
  const int64_t needed =
      CountWeightBytes(config, format).total() + tables + tables / config.n_layers;
  const int64_t read = CountReadBytes(config);
  const int64_t available = AvailableMemory();
  if (needed + read > available) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "not enough memory: ", Mebibytes(needed), " of weights in ", NumberName(format), " and ",
        Mebibytes(read), " of tensors in fp32 that are read at once; ", Mebibytes(available),
        " are available"));
  }
  return CpuNetwork::Create(config, checkpoint.tensors, format);
}

// States that grow count with their full size, so that no admitted sequence ever lacks memory.
absl::Status CheckMemory(const CpuNetwork& network, const CpuModelRunner::Options& options) {
  const int64_t slot =
      CpuModelRunner::SlotBytes(network.state_specs(), network.config().vocab_size);
  const int64_t tokens_at_once = CpuModelRunner::TokensAtOnce(options);
  const int64_t workspace = network.WorkspaceBytes(tokens_at_once, options.threads);
  const int64_t available = AvailableMemory();
  if (workspace <= available && slot <= (available - workspace) / options.slots) {
    return absl::OkStatus();
  }
  const std::string tokens =
      StateGrows(network.config().mixer)
          ? absl::StrCat(" (", network.config().max_seq_len, " tokens, max_seq_len)")
          : "";
  return absl::ResourceExhaustedError(
      absl::StrCat("not enough memory: ", options.slots, " slots of ", Mebibytes(slot), tokens,
                   " and ", Mebibytes(workspace), " of workspace for ", tokens_at_once,
                   " tokens at once; ", Mebibytes(available), " are available in addition to ",
                   Mebibytes(network.weight_bytes()), " of weights"));
}

absl::Status CheckMemory(const CpuNetwork& network, const CpuEncoderRunner::Options& options) {
  const int64_t workspace = network.WorkspaceBytes(options.max_batch_tokens, options.threads);
  const int64_t available = AvailableMemory();
  if (workspace <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "not enough memory: ", Mebibytes(workspace), " of workspace for ", options.max_batch_tokens,
      " tokens a batch; ", Mebibytes(available), " are available in addition to ",
      Mebibytes(network.weight_bytes()), " of weights"));
}

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadCpuRunner(const LoadOptions& options,
                                                           Number format,
                                                           const CheckpointFile& checkpoint,
                                                           std::vector<InitialState>& states) {
  CpuModelRunner::Options runner;
  runner.slots = options.slots;
  runner.max_step_tokens = options.max_step_tokens;
  AFT_RETURN_IF_ERROR(PlaceThreads(options, runner));
  AFT_ASSIGN_OR_RETURN(std::unique_ptr<CpuNetwork> network, LoadCpuNetwork(checkpoint, format));
  AFT_RETURN_IF_ERROR(CheckMemory(*network, runner));
  AFT_ASSIGN_OR_RETURN(states, ReadInitialStates(options.checkpoint_dir, checkpoint.config,
                                                 network->state_specs(), network->fingerprint()));
  return CpuModelRunner::Create(std::move(network), runner);
}

absl::StatusOr<std::unique_ptr<EncoderRunner>> LoadCpuEncoder(const LoadOptions& options,
                                                              Number format,
                                                              const CheckpointFile& checkpoint) {
  CpuEncoderRunner::Options runner;
  runner.max_batch_rows = options.max_batch_rows;
  runner.max_batch_tokens = options.max_batch_tokens;
  AFT_RETURN_IF_ERROR(PlaceThreads(options, runner));
  AFT_ASSIGN_OR_RETURN(std::unique_ptr<CpuNetwork> network, LoadCpuNetwork(checkpoint, format));
  AFT_RETURN_IF_ERROR(CheckMemory(*network, runner));
  return CpuEncoderRunner::Create(std::move(network), runner);
}

absl::StatusOr<LoadedModel> Load(const LoadOptions& options) {
  AFT_ASSIGN_OR_RETURN(const int device, DeviceIndex(options));
  AFT_RETURN_IF_ERROR(CheckWeightFormat(options, device));
  AFT_RETURN_IF_ERROR(CheckOptions(options));
  // LibTorch is used only for loading; steps run on our own threads. Without this call it would
  // start a team of OpenMP threads, one per core.
  at::set_num_threads(1);
  const c10::InferenceMode inference;

  AFT_ASSIGN_OR_RETURN(CheckpointFile checkpoint, OpenCheckpoint(options.checkpoint_dir));
  const NetworkConfig& config = checkpoint.config;
  if (options.progress != nullptr) {
    options.progress->Begin(2 * Fp32Bytes(config));  // tensors are checked, then read once more
  }
  checkpoint.tensors = WithProgress(std::move(checkpoint.tensors), options.progress);
  const Number format = WeightFormat(options, device, checkpoint);
  LoadedModel model;
  if (!config.tokenizer.empty()) {
    AFT_ASSIGN_OR_RETURN(
        std::shared_ptr<const Tokenizer> tokenizer,
        LoadTokenizer(config.tokenizer, options.checkpoint_dir, config.vocab_size));
    model.tokenizer =
        MakeFramedTokenizer(std::move(tokenizer), config.text_prefix, config.text_suffix);
  }
  if (config.architecture != Architecture::kDecoderLm) {
    AFT_ASSIGN_OR_RETURN(
        model.encoder,
        NamingTheFile(options, device == kCpu
                                   ? LoadCpuEncoder(options, format, checkpoint)
                                   : LoadGpuEncoder(options, format, device, checkpoint)));
  } else {
    AFT_ASSIGN_OR_RETURN(
        model.runner,
        NamingTheFile(options, device == kCpu ? LoadCpuRunner(options, format, checkpoint,
                                                              model.initial_states)
                                              : LoadGpuRunner(options, format, device, checkpoint,
                                                              model.initial_states)));
  }
  return model;
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const LoadOptions& options) {
  absl::StatusOr<LoadedModel> model = GuardTorch([&] { return Load(options); });
  malloc_trim(0);  // otherwise the process keeps 10 to 20 MiB that tensors took while loading
  return model;
}

}  // namespace aft
