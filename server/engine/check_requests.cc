#include "server/engine/check_requests.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/resumption.h"

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

absl::Status CheckGeneration(const GenerationRequest& request, const ModelInfo& info,
                             const std::string& model) {
  AFT_RETURN_IF_ERROR(CheckPrevious(request, info, model));
  const bool empty = request.prompt.size() == request.resumed;
  if (empty && request.previous == nullptr) return absl::InvalidArgumentError("prompt: is empty");
  if (!request.prompt.empty()) {
    AFT_RETURN_IF_ERROR(CheckTokens(request.prompt, info.vocab_size, /*max_tokens=*/0));
  }
  if (empty && request.previous->pending == kNoToken) {
    return absl::InvalidArgumentError(
        "prompt: must not be empty: the model has consumed all of the text before, so there is "
        "nothing to continue from (an end-of-text or stop token ended it)");
  }
  const int64_t before = request.tokens_before();
  const auto tokens = static_cast<int64_t>(request.prompt.size() - request.resumed);
  const int32_t least = request.prompt_scores ? 0 : 1;  // tokens of output
  const int64_t room = std::min(request.stop.max_tokens, 1);
  if (info.max_seq_len != 0 && before + tokens + room > info.max_seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt: ", before > 0 ? absl::StrCat(before, " tokens before, ") : "", tokens,
                     " tokens", room > 0 ? " and at least one more exceed" : " exceed",
                     " the model's max_seq_len=", info.max_seq_len));
  }
  if (request.stop.max_tokens < least) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop.max_tokens: ", request.stop.max_tokens, " is below ", least));
  }
  // A state without its pending token would be stored.
  if (empty && request.stop.max_tokens == 0) {
    return absl::InvalidArgumentError("stop.max_tokens: must be at least 1 if the prompt is empty");
  }
  return absl::OkStatus();
}

absl::Status CheckScoring(const ScoringRequest& request, const ModelInfo& info,
                          const std::string& model) {
  AFT_RETURN_IF_ERROR(CheckPrevious(request, info, model));
  AFT_RETURN_IF_ERROR(CheckTokens(request.text, info.vocab_size, info.max_seq_len));
  const int64_t before = request.tokens_before();
  const auto tokens = static_cast<int64_t>(request.text.size());
  if (request.context > 0 && request.context >= tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("context_tokens: must be less than the text's tokens (", tokens, "), got ",
                     request.context));
  }
  if (request.scored > request.scores(tokens)) {
    return absl::InvalidArgumentError(absl::StrCat("resume.scores: ", request.scored,
                                                   ", but the text has ", request.scores(tokens)));
  }
  if (info.max_seq_len == 0 || before + tokens <= info.max_seq_len) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("text_to_score: ", before, " tokens before and ", tokens,
                   " exceed the model's max_seq_len=", info.max_seq_len));
}

}  // namespace aft::server
