#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/api/encoder_runner.h"
#include "model/api/model_runner.h"
#include "model/api/tokenizer.h"

namespace aft {

struct LoadOptions {
  bool operator==(const LoadOptions& other) const = default;

  // Folder with config.json and model.safetensors.
  std::string checkpoint_dir;
  // Where the model runs: "cpu" or "cuda:N", the N-th GPU.
  std::string device = "cpu";
  // Storage format of the weights: one that the device has (model/config/formats.h).
  // "stored": as in the checkpoint's file, or fp32 where the device lacks that. Never chosen by
  // machine or load: the same request must give the same tokens on every start and replica.
  std::string weight_format = "stored";
  // Sequences that can be live at once; each owns ModelInfo::state_bytes from load on.
  int32_t slots = 64;
  // Largest step, in tokens: sizes the workspace. At least `slots`.
  int64_t max_step_tokens = 256;
  // Of the device's memory, what ModelRunner::KeepSlot may take: a GPU must have it beside the
  // rest.
  int64_t prefix_cache_bytes = 67'108'864;
  // Encoders instead: largest call of EncoderRunner::Encode, in texts and in their tokens.
  int64_t max_batch_rows = 32;
  int64_t max_batch_tokens = 4096;
  // Compute threads of a model on the CPU; 0: one less than AvailableCpus (base/cpus.h), at
  // least 1, or as many as `cpus` names.
  int32_t intra_op_threads = 0;
  // CPUs that these threads run on, one each and in turn where there are fewer, the caller's
  // (PrepareThread) on the first: a list such as "0-3,8". Empty: wherever the process may run.
  std::string cpus;
};

// Exactly one of the runners is there.
struct LoadedModel {
  std::unique_ptr<ModelRunner> runner;     // language models
  std::unique_ptr<EncoderRunner> encoder;  // encoders and bare mixers
  // Thread-safe: gRPC threads encode, the engine thread decodes. Null: the model takes vectors, or
  // images, and no text.
  std::shared_ptr<const Tokenizer> tokenizer;
};

// Loads a checkpoint, allocates everything the runner will ever need and runs a few warm-up steps.
// Errors name the file, the key or tensor, and the reason: NOT_FOUND (no such file),
// INVALID_ARGUMENT (options or config refused, or a device that this program was not built for),
// NOT_FOUND or UNAVAILABLE (no such device), DATA_LOSS (corrupt or mismatched weights),
// RESOURCE_EXHAUSTED (not enough memory: says what needs how much).
absl::StatusOr<LoadedModel> LoadModel(const LoadOptions& options);

}  // namespace aft
