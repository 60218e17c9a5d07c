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

// Turns the sampled tokens of one sequence into output text, and decides whether the output ends
// with them: token bytes -> stop strings -> valid UTF-8. Thread-compatible.
//
// If one token ends the output for several reasons, the first of these counts: a stop token, the
// end-of-text token, a stop string, a limit. A stop token or end-of-text token is not part of the
// output. A token that completes a stop string is part of it, although its text is cut.
class OutputBuilder {
 public:
  // `tokenizer` must outlive this object. `tokens_before` is the length of the text that the output
  // continues. `max_seq_len`: 0 is unlimited. `bad_words`: null, or sequences that the output never
  // contains. REQUIRES: stop.max_tokens >= 0; there is room for a token within max_seq_len, unless
  // one of the two is 0.
  OutputBuilder(const Tokenizer& tokenizer, StopConditions stop, int64_t tokens_before,
                int64_t max_seq_len, std::shared_ptr<const TokenSequences> bad_words = nullptr);

  // Appends the next token and fills `delta` with what it adds to the output. `delta` has the token
  // id at once; its text may be held back. Returns true when the output has ended. Then reason,
  // stop_string, stop_token_id, end_token and limit of `outcome` are set, all text is in `delta`,
  // and Append may not be called again. REQUIRES: stop.max_tokens >= 1.
  bool Append(SampledToken token, TokenDelta& delta, Outcome& outcome);

  // Appends the output tokens that the client has already, with their text. Returns true if the
  // output has ended with them; `outcome` is then set as by Append. INVALID_ARGUMENT, with the path
  // of the field: no output begins with these tokens, because it would have ended before. REQUIRES:
  // Append was not called.
  absl::StatusOr<bool> Replay(absl::Span<const TokenId> tokens, Outcome& outcome);

  // The number of output tokens so far, and the number after which the output ends at the latest.
  uint32_t tokens() const { return tokens_; }
  int64_t limit() const { return limit_; }
  // Before this number of tokens only a limit may end the output.
  int64_t min_tokens() const { return stop_.min_tokens; }

  // The tokens that may not come next because of the bad words.
  const SequenceBans& bans() const { return bans_; }

  // Whether a sampled token may end the output before its limit.
  bool may_end_early() const { return may_end_early_; }

 private:
  bool IsAtLimit(Outcome& outcome) const;
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
