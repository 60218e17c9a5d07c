#include "model/runtime/text_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace aft {
namespace {

absl::Status CheckText(const TextLimits& limits, const std::vector<TokenId>& text) {
  for (const TokenId token : text) {
    if (token < 0 || token >= limits.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("token ", token, " is out of range"));
    }
  }
  return absl::OkStatus();
}

// An image's width, and what goes with tokens, must fit their number.
absl::Status CheckForm(const TextLimits& limits, const EncoderInput& input, int64_t tokens) {
  if (!input.vectors.empty() && !input.text.empty()) {
    return absl::InvalidArgumentError("both ids and vectors");
  }
  if (input.vectors.size() % static_cast<size_t>(limits.width) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(input.vectors.size(), " numbers in vectors of ", limits.width));
  }
  if (!input.mask.empty() && input.mask.size() != static_cast<size_t>(tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a mask of ", input.mask.size(), " for ", tokens, " tokens"));
  }
  const int64_t columns = input.image_width;
  if (limits.max_image_width == 0) {
    return columns == 0 ? absl::OkStatus() : absl::InvalidArgumentError("is an image");
  }
  if (columns < 1 || columns > limits.max_image_width) {
    return absl::InvalidArgumentError(
        absl::StrCat("an image of ", columns, " columns; must be 1 to ", limits.max_image_width));
  }
  if (tokens % columns == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(tokens, " tokens are no image of ", columns, " columns"));
}

absl::Status CheckSequence(const TextLimits& limits, const EncoderInput& input, int64_t tokens) {
  if (absl::Status status = CheckForm(limits, input, tokens); !status.ok()) return status;
  if (tokens == 0) return absl::InvalidArgumentError("no tokens");
  if (limits.max_seq_len > 0 && tokens > limits.max_seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokens, " tokens; max_seq_len is ", limits.max_seq_len));
  }
  return CheckText(limits, input.text);
}

}  // namespace

absl::Status CheckTexts(const TextLimits& limits, const std::vector<EncoderInput>& sequences) {
  if (sequences.size() > static_cast<size_t>(limits.max_batch_rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat(sequences.size(), " sequences in a batch of at most ", limits.max_batch_rows));
  }
  int64_t all = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t tokens = sequences[i].tokens(limits.width);
    const absl::Status status = CheckSequence(limits, sequences[i], tokens);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", i, ": ", status.message()));
    }
    all += tokens;
  }
  if (all > limits.max_batch_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(all, " tokens in a batch of at most ", limits.max_batch_tokens));
  }
  return absl::OkStatus();
}

std::vector<EncoderInput> ZeroInputs(const TextLimits& limits, int64_t tokens) {
  std::vector<EncoderInput> inputs;
  for (; tokens > 0; tokens -= limits.longest()) {
    const auto length = static_cast<size_t>(std::min(tokens, limits.longest()));
    EncoderInput& input = inputs.emplace_back();
    if (limits.vocab_size > 0) {
      input.text.resize(length);
    } else {
      input.vectors.resize(length * static_cast<size_t>(limits.width));
    }
    if (limits.max_image_width > 0) input.image_width = 1;
  }
  return inputs;
}

std::vector<EncoderPass> PassesOf(const std::vector<EncoderInput>& sequences) {
  std::vector<EncoderPass> passes;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const bool vectors = !sequences[i].vectors.empty();
    const int64_t columns = sequences[i].image_width;
    auto pass = std::find_if(passes.begin(), passes.end(), [&](const EncoderPass& known) {
      return known.vectors == vectors && known.image_width == columns;
    });
    if (pass == passes.end()) pass = passes.insert(passes.end(), {vectors, columns, {}});
    pass->sequences.push_back(i);
  }
  return passes;
}

}  // namespace aft
