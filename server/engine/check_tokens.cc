#include "server/engine/check_tokens.h"

#include "absl/strings/str_cat.h"

namespace aft::server {

absl::Status CheckTokens(const std::vector<TokenId>& tokens, int64_t vocab_size,
                         int64_t max_tokens) {
  if (tokens.empty()) return absl::InvalidArgumentError("text: is empty");
  const auto count = static_cast<int64_t>(tokens.size());
  if (max_tokens != 0 && count > max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: must have at most ", max_tokens, " tokens, got ", count));
  }
  for (const TokenId id : tokens) {
    if (id < 0 || id >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("text: token id ", id, " is outside the vocabulary of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace aft::server
