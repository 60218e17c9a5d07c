#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/utf8.h"
#include "model/api/model_runner.h"
#include "model/api/tokenizer.h"
#include "server/engine/request.h"
#include "server/engine/sequence_bans.h"
#include "server/engine/stop_matcher.h"

namespace aft::server {

// Sampled tokens of one sequence -> output text, and whether the output ends with them:
// token bytes -> stop strings -> valid UTF-8. Thread-compatible.
//
// Several reasons may hold for one token; the first of these counts: a stop token, the end-of-text
// token, a stop string, a limit. A stop token or end-of-text token is not part of the output; a
// token that completes a stop string is, though its text is cut.
class OutputBuilder {
 public:
  // `tokenizer` must outlive this object. `tokens_before`: of the text that the output goes on.
  // `max_seq_len`: 0 is unlimited. `bad_words`: null, or sequences that the output never has.
  // REQUIRES: stop.max_tokens >= 1; tokens_before < max_seq_len unless that is 0.
  OutputBuilder(const Tokenizer& tokenizer, StopConditions stop, int64_t tokens_before,
                int64_t max_seq_len, std::shared_ptr<const TokenSequences> bad_words = nullptr);

  // Takes the next token and fills `delta` with what it adds; token ids are there at once, text may
  // be held back. True when the output has ended: then reason, stop_string, stop_token_id and limit
  // of `outcome` are set, all text is in `delta`, and Append may not be called again.
  bool Append(SampledToken token, TokenDelta& delta, Outcome& outcome);

  // Takes what its reader has of the output already: the text of these tokens, too. True: the
  // output has ended with them, as Append says. INVALID_ARGUMENT, with the path of the field: no
  // output begins so, because it would have ended before. REQUIRES: Append was not called.
  absl::StatusOr<bool> Replay(absl::Span<const TokenId> tokens, Outcome& outcome);

  // Tokens of the output so far, and after which it ends at the latest.
  uint32_t tokens() const { return tokens_; }
  int64_t limit() const { return limit_; }
  // Nothing but a limit ends it before so many.
  int64_t min_tokens() const { return stop_.min_tokens; }

  // What it may not go on with, as far as its bad words decide that.
  const SequenceBans& bans() const { return bans_; }

  // Whether a token that is sampled may end it before that.
  bool may_end_early() const { return may_end_early_; }

 private:
  bool IsStopToken(TokenId id) const;
  bool IsEndOfText(TokenId id) const { return id == tokenizer_.eos_id() && !stop_.ignore_eos; }

  const Tokenizer& tokenizer_;
  StopConditions stop_;
  const bool may_end_early_;
  StopMatcher matcher_;
  SequenceBans bans_;
  Utf8Stream utf8_;
  int64_t max_seq_len_;
  int64_t limit_;
  uint32_t tokens_ = 0;
};

}  // namespace aft::server
