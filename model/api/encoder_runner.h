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

// A number for each pair of a query and a key, [queries, keys]. Sequences may share one mask.
using PairMask = std::shared_ptr<const std::vector<float>>;

// One sequence: either ids, or the vectors that an embedding would have made of them. The encoder
// adds positions to these vectors. A bare mixer has neither embedding nor positions and takes
// vectors as they are.
struct EncoderInput {
  std::vector<TokenId> text{};
  TokenVectors vectors{};
  // Empty, or for a bare mixer the vectors that its keys and values are made of. `vectors` are then
  // the queries and decide how many vectors come out. There are as many keys as values (no keys
  // with EncoderForms::keyless), and as many as queries unless EncoderForms::free_lengths is set.
  TokenVectors keys{};
  TokenVectors values{};
  // [keys] or empty: a number that is added to every score of that token as a key, in every layer.
  // 0 leaves the key visible. At most -1e30 hides it: its vector then changes no other token. The
  // numbers must be neither NaN nor +inf.
  std::vector<float> mask{};
  // If not null, these hold such a number for each pair of a query and a key, instead of `mask`.
  PairMask pairs{};
  // The number of columns of an image, whose pixels are the tokens row by row. 0: not an image.
  int64_t image_width = 0;

  // `width`: EncoderRunner::input_width().
  int64_t tokens(int64_t width) const {
    return static_cast<int64_t>(vectors.empty() ? text.size()
                                                : vectors.size() / static_cast<size_t>(width));
  }
  int64_t key_tokens(int64_t width) const {
    return values.empty() ? tokens(width) : static_cast<int64_t>(values.size()) / width;
  }
  // The number of tokens that the sequence takes of a batch. Keys count in addition to the queries
  // when their number differs from that of the queries.
  int64_t step_tokens(int64_t width) const {
    const int64_t keys_of_own = key_tokens(width);
    return tokens(width) + (keys_of_own == tokens(width) ? 0 : keys_of_own);
  }
};

// The most pairs of a sequence that has a mask of pairs, or fewer or more keys than queries. Such a
// sequence costs a score for each pair, where the kernels of other sequences cost one per token.
inline constexpr int64_t kMaxPairs = int64_t{1} << 22;

// INVALID_ARGUMENT when the sizes of keys, values or masks of `input` do not fit each other, or
// when a model with `forms` does not take them.
inline absl::Status CheckForms(const EncoderForms& forms, const EncoderInput& input,
                               int64_t width) {
  const auto bad = [](absl::string_view why) { return absl::InvalidArgumentError(why); };
  const int64_t tokens = input.tokens(width);
  const int64_t keys = input.key_tokens(width);
  if (input.values.empty() ? !input.keys.empty() : !forms.sources || input.vectors.empty()) {
    return bad("keys and values: only with vectors, for a bare mixer on the CPU");
  }
  const auto numbers = static_cast<size_t>(keys * width);
  if (!input.values.empty() &&
      (input.values.size() != numbers || input.keys.size() != (forms.keyless ? 0 : numbers) ||
       (keys != tokens && !forms.free_lengths))) {
    return bad("keys and values: their sizes do not fit each other or the queries");
  }
  if (!input.mask.empty() && static_cast<int64_t>(input.mask.size()) != keys) {
    return absl::InvalidArgumentError(
        absl::StrCat("a mask of ", input.mask.size(), " for ", keys, " tokens"));
  }
  if (input.pairs != nullptr && (!forms.pairs || !input.mask.empty() ||
                                 static_cast<int64_t>(input.pairs->size()) != tokens * keys)) {
    return bad("pairs: only on the CPU, without a mask of keys, and with a number for each pair");
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

  // See ModelRunner::device_stats; every call of Encode is a step.
  virtual const DeviceStats* device_stats() const { return nullptr; }

  // The size of a token's vector: input_width() in EncoderInput::vectors, width() in the result of
  // Encode. A classifier (ModelInfo::labels) makes a logit for each label and token; the mean over
  // the tokens is the logit of the sequence.
  virtual int64_t input_width() const = 0;
  virtual int64_t width() const = 0;

  // See ModelRunner::PrepareThread.
  virtual void PrepareThread() {}

  // Largest number of sequences, and of tokens, that one call may hold.
  virtual int64_t max_batch_rows() const = 0;
  virtual int64_t max_batch_tokens() const = 0;

  // Encodes sequences of one or more tokens each. Result i belongs to sequences[i] and does not
  // depend on the other sequences, bit for bit. This holds for numbers that are not finite too: NaN
  // in a vector spreads only as the formula says, within its sequence. The mixer's output is 0 for
  // a token that sees no key.
  //
  // Errors: INVALID_ARGUMENT when a sequence is empty, too long, not what the model takes (ids in
  // the vocabulary, images where the filter is 2-D) or has sizes that do not fit each other, or
  // when the batch is too large; nothing is computed then. INTERNAL and UNAVAILABLE as in
  // ModelRunner::Collect.
  virtual absl::StatusOr<std::vector<TokenVectors>> Encode(
      const std::vector<EncoderInput>& sequences) = 0;
};

}  // namespace aft
