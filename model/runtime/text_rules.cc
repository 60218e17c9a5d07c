#include "model/runtime/text_rules.h"

#include "absl/strings/str_cat.h"

namespace aft {

absl::Status CheckTexts(const TextLimits& limits, const std::vector<std::vector<TokenId>>& texts) {
  if (texts.size() > static_cast<size_t>(limits.max_batch_rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat(texts.size(), " sequences in a batch of at most ", limits.max_batch_rows));
  }
  size_t tokens = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto error = [i](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", i, ": ", what...));
    };
    const size_t length = texts[i].size();
    if (length == 0) return error("no tokens");
    if (limits.max_seq_len > 0 && length > static_cast<size_t>(limits.max_seq_len)) {
      return error(length, " tokens; max_seq_len is ", limits.max_seq_len);
    }
    for (const TokenId token : texts[i]) {
      if (token < 0 || token >= limits.vocab_size) {
        return error("token ", token, " is out of range");
      }
    }
    tokens += length;
  }
  if (tokens > static_cast<size_t>(limits.max_batch_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokens, " tokens in a batch of at most ", limits.max_batch_tokens));
  }
  return absl::OkStatus();
}

}  // namespace aft
