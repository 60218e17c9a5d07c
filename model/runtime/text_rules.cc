#include "model/runtime/text_rules.h"

#include <algorithm>
#include <tuple>

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

// Checks that there are ids or vectors but not both, and that vectors and images are complete.
absl::Status CheckForm(const TextLimits& limits, const EncoderInput& input, int64_t tokens) {
  if (!input.vectors.empty() && !input.text.empty()) {
    return absl::InvalidArgumentError("has both ids and vectors");
  }
  if (input.vectors.size() % static_cast<size_t>(limits.width) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(input.vectors.size(), " numbers in vectors of ", limits.width));
  }
  const int64_t columns = input.image_width;
  if (limits.max_image_width == 0) {
    return columns == 0 ? absl::OkStatus()
                        : absl::InvalidArgumentError("is an image, which this model does not take");
  }
  if (columns < 1 || columns > limits.max_image_width) {
    return absl::InvalidArgumentError(
        absl::StrCat("an image of ", columns, " columns; must be 1 to ", limits.max_image_width));
  }
  if (tokens % columns == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(tokens, " tokens are not an image of ", columns, " columns"));
}

absl::Status CheckSequence(const TextLimits& limits, const EncoderInput& input, int64_t tokens) {
  if (absl::Status status = CheckForm(limits, input, tokens); !status.ok()) return status;
  if (tokens == 0) return absl::InvalidArgumentError("no tokens");
  if (absl::Status status = CheckForms(limits.forms, input, limits.width); !status.ok()) {
    return status;
  }
  const int64_t longest = std::max(tokens, input.key_tokens(limits.width));
  if (limits.max_seq_len > 0 && longest > limits.max_seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat(longest, " tokens; max_seq_len is ", limits.max_seq_len));
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
    all += sequences[i].step_tokens(limits.width);
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

std::vector<EncoderPass> PassesOf(const std::vector<EncoderInput>& sequences, int64_t width) {
  const auto form = [](const EncoderPass& pass) {
    return std::tuple(pass.vectors, pass.image_width, pass.pairs, pass.sources, pass.own_keys);
  };
  std::vector<EncoderPass> passes;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const EncoderInput& input = sequences[i];
    const EncoderPass like = {.vectors = !input.vectors.empty(),
                              .image_width = input.image_width,
                              .pairs = input.pairs != nullptr,
                              .sources = !input.values.empty(),
                              .own_keys = input.key_tokens(width) != input.tokens(width)};
    auto pass = std::find_if(passes.begin(), passes.end(),
                             [&](const EncoderPass& known) { return form(known) == form(like); });
    if (pass == passes.end()) pass = passes.insert(passes.end(), like);
    pass->sequences.push_back(i);
  }
  return passes;
}

}  // namespace aft
