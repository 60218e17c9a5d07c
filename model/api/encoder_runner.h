#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "model/api/model_runner.h"     // ModelInfo, DeviceStats
#include "model/api/sampling_params.h"  // TokenId

namespace aft {

// Vectors of one sequence, [tokens, EncoderRunner::width()], dense.
using TokenVectors = std::vector<float>;

// Runs one encoder on one device: the counterpart of ModelRunner for models that turn a whole text
// into vectors and keep no state. Thread-compatible: one thread (the engine's) makes every call.
class EncoderRunner {
 public:
  virtual ~EncoderRunner() = default;

  virtual const ModelInfo& info() const = 0;

  // As ModelRunner::device_stats; every call of Encode is a step.
  virtual const DeviceStats* device_stats() const { return nullptr; }

  virtual int64_t width() const = 0;  // of a token's vector

  // As ModelRunner::PrepareThread.
  virtual void PrepareThread() {}

  // Largest number of sequences, and of tokens, that one call may hold.
  virtual int64_t max_batch_rows() const = 0;
  virtual int64_t max_batch_tokens() const = 0;

  // Encodes sequences of one or more tokens each; result i belongs to sequences[i] and does not
  // depend on the others, bit for bit. Errors: INVALID_ARGUMENT when a sequence is empty, too long
  // or holds an id out of range, or the batch is too large; nothing is computed then. INTERNAL
  // and UNAVAILABLE as ModelRunner::Collect.
  virtual absl::StatusOr<std::vector<TokenVectors>> Encode(
      const std::vector<std::vector<TokenId>>& sequences) = 0;
};

}  // namespace aft
