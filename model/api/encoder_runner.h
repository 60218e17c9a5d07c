#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "model/api/model_runner.h"     // ModelInfo, DeviceStats
#include "model/api/sampling_params.h"  // TokenId

namespace aft {

// Vectors of one sequence, [tokens, input_width() or width()], dense.
using TokenVectors = std::vector<float>;

// One sequence: ids, or in their place the vectors that an embedding would have made of them, whose
// positions the encoder adds. A bare mixer, which has neither, takes vectors as they are.
struct EncoderInput {
  std::vector<TokenId> text{};
  TokenVectors vectors{};
  // [tokens] or empty: added to every score of that token as a key, in every layer. 0: visible; at
  // most -1e30: hidden, and what its vector holds changes no other token. Neither NaN nor +inf.
  std::vector<float> mask{};
  // Columns of an image, whose pixels are the tokens row by row; 0: it is none.
  int64_t image_width = 0;

  // `width`: EncoderRunner::input_width().
  int64_t tokens(int64_t width) const {
    return static_cast<int64_t>(vectors.empty() ? text.size()
                                                : vectors.size() / static_cast<size_t>(width));
  }
};

inline std::vector<EncoderInput> TextInputs(const std::vector<std::vector<TokenId>>& texts) {
  std::vector<EncoderInput> inputs;
  inputs.reserve(texts.size());
  for (const std::vector<TokenId>& text : texts) inputs.push_back({text});
  return inputs;
}

// Runs one encoder, or one mixer by itself, on one device: the counterpart of ModelRunner for
// models that turn a whole sequence into vectors and keep no state. Thread-compatible: one thread
// (the engine's) makes every call.
class EncoderRunner {
 public:
  virtual ~EncoderRunner() = default;

  virtual const ModelInfo& info() const = 0;

  // As ModelRunner::device_stats; every call of Encode is a step.
  virtual const DeviceStats* device_stats() const { return nullptr; }

  // Of a token's vector: of what EncoderInput::vectors holds, and of what Encode makes. A
  // classifier (ModelInfo::labels) makes a logit for each label; the mean over its tokens is the
  // sequence's.
  virtual int64_t input_width() const = 0;
  virtual int64_t width() const = 0;

  // As ModelRunner::PrepareThread.
  virtual void PrepareThread() {}

  // Largest number of sequences, and of tokens, that one call may hold.
  virtual int64_t max_batch_rows() const = 0;
  virtual int64_t max_batch_tokens() const = 0;

  // Encodes sequences of one or more tokens each; result i belongs to sequences[i] and does not
  // depend on the others, bit for bit, numbers that are not finite included: NaN in a vector makes
  // NaN of what the formula says, of that sequence. A token that sees no key has the mixer's output
  // 0. Errors: INVALID_ARGUMENT when a sequence is empty, too long, not what the model takes (ids
  // in the vocabulary, images where the filter is 2-D) or of sizes that do not fit each other, or
  // the batch is too large; nothing is computed then. INTERNAL and UNAVAILABLE as
  // ModelRunner::Collect.
  virtual absl::StatusOr<std::vector<TokenVectors>> Encode(
      const std::vector<EncoderInput>& sequences) = 0;
};

}  // namespace aft
