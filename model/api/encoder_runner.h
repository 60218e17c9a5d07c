#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/api/model_runner.h"     // ModelInfo, DeviceStats
#include "model/api/sampling_params.h"  // TokenId

namespace aft {

// Vectors of one sequence, [tokens, input_width() or width()], dense.
using TokenVectors = std::vector<float>;

// A number for each pair of a query and a key, [queries, keys]. Sequences may share one.
using PairMask = std::shared_ptr<const std::vector<float>>;

// One sequence: ids, or in their place the vectors that an embedding would have made of them, whose
// positions the encoder adds. A bare mixer, which has neither, takes vectors as they are.
struct EncoderInput {
  std::vector<TokenId> text{};
  TokenVectors vectors{};
  // Of a bare mixer, or empty: what its keys and values are made of, while `vectors` are the
  // queries and decide how many vectors come out. As many keys as values (none where
  // EncoderForms::keyless), and as many as queries unless EncoderForms::free_lengths.
  TokenVectors keys{};
  TokenVectors values{};
  // [keys] or empty: added to every score of that token as a key, in every layer. 0: visible; at
  // most -1e30: hidden, and what its vector holds changes no other token. Neither NaN nor +inf.
  std::vector<float> mask{};
  // Null, or the same of each pair of a query and a key, instead of `mask`.
  PairMask pairs{};
  // Columns of an image, whose pixels are the tokens row by row; 0: it is none.
  int64_t image_width = 0;

  // `width`: EncoderRunner::input_width().
  int64_t tokens(int64_t width) const {
    return static_cast<int64_t>(vectors.empty() ? text.size()
                                                : vectors.size() / static_cast<size_t>(width));
  }
  int64_t key_tokens(int64_t width) const {
    return values.empty() ? tokens(width) : static_cast<int64_t>(values.size()) / width;
  }
  // Rows of a step that it takes: keys of another number than queries are rows of their own.
  int64_t step_tokens(int64_t width) const {
    const int64_t keys_of_own = key_tokens(width);
    return tokens(width) + (keys_of_own == tokens(width) ? 0 : keys_of_own);
  }
};

// Pairs of a sequence that has a mask of pairs, or keys of another number than queries: each costs
// a score, where the kernels of other sequences cost one a token.
inline constexpr int64_t kMaxPairs = int64_t{1} << 22;

// INVALID_ARGUMENT: keys, values or masks of `input` are of sizes that do not fit each other, or
// nothing that a model with `forms` takes.
inline absl::Status CheckForms(const EncoderForms& forms, const EncoderInput& input,
                               int64_t width) {
  const auto bad = [](absl::string_view why) { return absl::InvalidArgumentError(why); };
  const int64_t tokens = input.tokens(width);
  const int64_t keys = input.key_tokens(width);
  if (input.values.empty() ? !input.keys.empty() : !forms.sources || input.vectors.empty()) {
    return bad("keys and values: only of a bare mixer's vectors, on the CPU");
  }
  const auto numbers = static_cast<size_t>(keys * width);
  if (!input.values.empty() &&
      (input.values.size() != numbers || input.keys.size() != (forms.keyless ? 0 : numbers) ||
       (keys != tokens && !forms.free_lengths))) {
    return bad("keys and values: not as many as they must be");
  }
  if (!input.mask.empty() && static_cast<int64_t>(input.mask.size()) != keys) {
    return absl::InvalidArgumentError(
        absl::StrCat("a mask of ", input.mask.size(), " for ", keys, " tokens"));
  }
  if (input.pairs != nullptr && (!forms.pairs || !input.mask.empty() ||
                                 static_cast<int64_t>(input.pairs->size()) != tokens * keys)) {
    return bad("pairs: only on the CPU, without a mask of keys, a number for each pair");
  }
  if ((keys == tokens && input.pairs == nullptr) || keys <= kMaxPairs / tokens) {
    return absl::OkStatus();
  }
  return bad("more pairs than kMaxPairs");
}

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
