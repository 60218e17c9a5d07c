#include "model/runtime/load.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "c10/core/InferenceMode.h"
#include "model/checkpoint/checkpoint.h"
#include "model/network/decoder.h"
#include "model/runtime/cpu_model_runner.h"
#include "model/runtime/memory.h"
#include "model/runtime/torch_guard.h"
#include "model/tokenizer/load_tokenizer.h"

namespace aft {
namespace {

absl::Status CheckOptions(const LoadOptions& options) {
  if (options.weight_format != "fp32") {
    return absl::InvalidArgumentError(
        absl::StrCat("weight_format \"", options.weight_format, "\": only \"fp32\" is supported"));
  }
  if (options.slots < 1) return absl::InvalidArgumentError("slots: must be at least 1");
  if (options.max_step_tokens < options.slots) {
    return absl::InvalidArgumentError(absl::StrCat("max_step_tokens: ", options.max_step_tokens,
                                                   " is less than slots, ", options.slots));
  }
  if (options.intra_op_threads < 0) {
    return absl::InvalidArgumentError("intra_op_threads: must not be negative");
  }
  return absl::OkStatus();
}

int Threads(const LoadOptions& options) {
  if (options.intra_op_threads > 0) return options.intra_op_threads;
  return std::max(static_cast<int>(std::thread::hardware_concurrency()) - 1, 1);
}

std::string Mebibytes(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

// Before the large allocations: past the limit the kernel would kill the process instead.
absl::Status CheckMemory(const Decoder& decoder, const CpuModelRunner::Options& options) {
  const int64_t slot = StatePool::SlotBytes(decoder.state_specs());
  const int64_t workspace =
      CpuModelRunner::WorkspaceBytes(decoder.config(), decoder.scratch_floats(), options);
  const int64_t available = AvailableMemory();
  if (slot * options.slots + workspace <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("not enough memory: ", options.slots, " slots of ", Mebibytes(slot), " and ",
                   Mebibytes(workspace), " of workspace for ", options.max_step_tokens,
                   " tokens a step; ", Mebibytes(available), " are available beside ",
                   Mebibytes(decoder.weight_bytes()), " of weights"));
}

absl::StatusOr<std::unique_ptr<Decoder>> LoadDecoder(const LoadOptions& options,
                                                     std::string* tokenizer) {
  AFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, ReadCheckpoint(options.checkpoint_dir));
  *tokenizer = checkpoint.config.tokenizer;
  absl::StatusOr<std::unique_ptr<Decoder>> decoder =
      Decoder::Create(checkpoint.config, checkpoint.tensors);
  if (!decoder.ok()) {
    return absl::Status(decoder.status().code(),
                        absl::StrCat(options.checkpoint_dir, "/", kWeightsFileName, ": ",
                                     decoder.status().message()));
  }
  return decoder;
}

absl::StatusOr<LoadedModel> Load(const LoadOptions& options) {
  AFT_RETURN_IF_ERROR(CheckOptions(options));
  CpuModelRunner::Options runner_options;
  runner_options.slots = options.slots;
  runner_options.max_step_tokens = options.max_step_tokens;
  runner_options.threads = Threads(options);
  // LibTorch only loads here; steps run on our own threads. Without this it would start a team of
  // OpenMP threads, one per core.
  at::set_num_threads(1);
  const c10::InferenceMode inference;

  std::string tokenizer;
  AFT_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder, LoadDecoder(options, &tokenizer));
  AFT_RETURN_IF_ERROR(CheckMemory(*decoder, runner_options));
  LoadedModel model;
  AFT_ASSIGN_OR_RETURN(model.tokenizer, LoadTokenizer(tokenizer, options.checkpoint_dir,
                                                      decoder->config().vocab_size));
  AFT_ASSIGN_OR_RETURN(model.runner, CpuModelRunner::Create(std::move(decoder), runner_options));
  return model;
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const LoadOptions& options) {
  return GuardTorch([&] { return Load(options); });
}

}  // namespace aft
