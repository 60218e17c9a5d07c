#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/progress.h"
#include "model/api/encoder_runner.h"
#include "model/api/model_runner.h"
#include "model/api/tokenizer.h"

namespace aft {

struct LoadOptions {
  bool operator==(const LoadOptions& other) const = default;

  // Folder with config.json and model.safetensors, and with tuned states if there are any.
  std::string checkpoint_dir;
  // Where the model runs: "cpu" or "cuda:N", the N-th GPU.
  std::string device = "cpu";
  // Storage format of the weights: one that the device has (model/config/formats.h).
  // "stored": as in the checkpoint's file, or fp32 where the device lacks that. The choice never
  // depends on the machine or its load: a request must give the same tokens on every replica and
  // after every start.
  std::string weight_format = "stored";
  // Sequences that can be live at once; each owns ModelInfo::state_bytes from load on.
  int32_t slots = 64;
  // Largest step, in tokens; it decides the size of the workspace. At least `slots`.
  int64_t max_step_tokens = 256;
  // Bytes of the device's memory that ModelRunner::KeepSlot may use. A GPU must have this memory in
  // addition to everything else.
  int64_t prefix_cache_bytes = 67'108'864;
  // These limit a call of EncoderRunner::Encode, in texts and in their tokens.
  int64_t max_batch_rows = 32;
  int64_t max_batch_tokens = 4096;
  // Compute threads of a model on the CPU. 0: as many as `cpus` names or, when that is empty, one
  // less than AvailableCpus (base/cpus.h), at least 1.
  int32_t intra_op_threads = 0;
  // Measure at load how many of these threads compute steps of few tokens fastest, and use that
  // number. ModelInfo::device says which were chosen. Results do not depend on it.
  bool measure_threads = false;
  // A list of CPUs such as "0-3,8". Each of these threads runs on one CPU of the list, in turn when
  // there are fewer CPUs than threads; the caller's thread (PrepareThread) runs on the first one.
  // Empty: the threads run wherever the process may run.
  std::string cpus;
  // If not null, gets how much of the checkpoint's weights has been read.
  Progress* progress = nullptr;
};

// A tuned state: a text may begin from it instead of from nothing. It counts as one token.
struct InitialState {
  std::string name;
  std::string snapshot;  // for ModelRunner::BindSlot
  uint64_t hash = 0;     // of the snapshot: the same in every process
};

// Exactly one of the two runners is set.
struct LoadedModel {
  std::unique_ptr<ModelRunner> runner;       // language models
  std::unique_ptr<EncoderRunner> encoder;    // encoders and bare mixers
  std::vector<InitialState> initial_states;  // of a language model; no two with the same name
  // Thread-safe: gRPC threads encode, the engine thread decodes. Null when the model takes vectors
  // or images instead of text.
  std::shared_ptr<const Tokenizer> tokenizer;
};

// Loads a checkpoint, allocates everything the runner will ever need and runs a few warm-up steps.
// Errors name the file, the key or tensor, and the reason: NOT_FOUND (no such file),
// INVALID_ARGUMENT (options or config refused, or a device that this program was not built for),
// NOT_FOUND or UNAVAILABLE (no such device), DATA_LOSS (corrupt or mismatched weights),
// RESOURCE_EXHAUSTED (not enough memory; the message says what needs how much).
absl::StatusOr<LoadedModel> LoadModel(const LoadOptions& options);

}  // namespace aft
