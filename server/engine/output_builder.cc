#include "server/engine/output_builder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/token_bytes.h"

namespace aft::server {

OutputBuilder::OutputBuilder(const Tokenizer& tokenizer, StopConditions stop, int64_t tokens_before,
                             int64_t max_seq_len, std::shared_ptr<const TokenSequences> bad_words)
    : tokenizer_(tokenizer),
      stop_(std::move(stop)),
      may_end_early_(!stop_.strings.empty() || !stop_.token_ids.empty() ||
                     (!stop_.ignore_eos && tokenizer.eos_id() >= 0)),
      matcher_(std::move(stop_.strings), stop_.include_stop_string),
      bans_(std::move(bad_words)),
      max_seq_len_(max_seq_len),
      limit_(max_seq_len == 0 ? stop_.max_tokens
                              : std::min<int64_t>(stop_.max_tokens, max_seq_len - tokens_before)) {}

bool OutputBuilder::Append(SampledToken token, TokenDelta& delta, Outcome& outcome) {
  const TokenId id = token.id;
  std::string bytes;
  bool ended = true;
  delta.first_index = tokens_;
  if (IsStopToken(id)) {
    outcome.reason = FinishReason::kStop;
    outcome.stop_token_id = id;
    outcome.end_token = std::move(token);
  } else if (IsEndOfText(id)) {
    outcome.reason = FinishReason::kEos;
    outcome.end_token = std::move(token);
  } else {
    delta.tokens.push_back(std::move(token));
    ++tokens_;
    bans_.Append(id);
    if (matcher_.Append(TokenBytes(tokenizer_, id), bytes,
                        tokens_ > static_cast<uint32_t>(stop_.min_tokens))) {
      outcome.reason = FinishReason::kStop;
      outcome.stop_string = matcher_.match();
    } else {
      ended = IsAtLimit(outcome);
    }
  }
  if (ended) matcher_.Flush(bytes);
  utf8_.Append(bytes, delta.text);
  if (ended) utf8_.Flush(delta.text);
  return ended;
}

absl::StatusOr<bool> OutputBuilder::Replay(absl::Span<const TokenId> tokens, Outcome& outcome) {
  bool ended = IsAtLimit(outcome);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (ended) {
      return absl::InvalidArgumentError(
          absl::StrCat("resume.token_ids: ", tokens.size(), " tokens, but the output ends with ", i,
                       " (", outcome.limit.empty() ? "a stop string" : outcome.limit, ")"));
    }
    if (IsStopToken(tokens[i]) || IsEndOfText(tokens[i])) {
      return absl::InvalidArgumentError(absl::StrCat("resume.token_ids[", i, "]: token ", tokens[i],
                                                     " ends an output, and is no part of it"));
    }
    TokenDelta delivered;
    SampledToken token;
    token.id = tokens[i];
    ended = Append(std::move(token), delivered, outcome);
  }
  return ended;
}

// If the output has all the tokens that it may have, says so in `outcome`.
bool OutputBuilder::IsAtLimit(Outcome& outcome) const {
  if (tokens_ < limit_) return false;
  outcome.reason = FinishReason::kLength;
  outcome.limit = limit_ == stop_.max_tokens ? absl::StrCat("stop.max_tokens=", limit_)
                                             : absl::StrCat("model max_seq_len=", max_seq_len_);
  return true;
}

bool OutputBuilder::IsStopToken(TokenId id) const {
  return std::find(stop_.token_ids.begin(), stop_.token_ids.end(), id) != stop_.token_ids.end();
}

}  // namespace aft::server
