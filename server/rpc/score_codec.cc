#include "server/rpc/score_codec.h"

#include <cmath>

#include "base/status_macros.h"
#include "server/rpc/text_codec.h"

namespace aft::server {

absl::StatusOr<ScoringRequest> DecodeScoreRequest(const v1::ScoreRequest& message,
                                                  const LimitsConfig& limits,
                                                  const Tokenizer& tokenizer,
                                                  const ModelInfo& model) {
  ScoringRequest request;
  AFT_ASSIGN_OR_RETURN(request.top_logprobs, DecodeTopLogprobs(message.output(), /*unset=*/0));
  TextRules rules = {.limits = limits, .tokenizer = tokenizer, .vocab_size = model.vocab_size};
  if (model.max_seq_len != 0) {
    rules.max_tokens = model.max_seq_len;
    rules.max_tokens_name = "the model's max_seq_len";
  }
  AFT_ASSIGN_OR_RETURN(request.text, DecodeText(TextOf(message, "text_to_score"), rules));
  return request;
}

size_t AppendScores(const TokenDelta& delta, v1::ScoreChunk& message) {
  if (message.token_ids_size() == 0) message.set_first_index(delta.first_index);
  size_t bytes = 0;
  for (const SampledToken& token : delta.tokens) {
    message.add_token_ids(static_cast<uint32_t>(token.id));
    bytes += 3 + AddLogprobs(token, *message.add_logprobs());
  }
  return bytes;
}

v1::ScoreFinished EncodeScoreFinished(const Outcome& outcome) {
  v1::ScoreFinished message;
  const uint32_t tokens = outcome.usage.scored_tokens;
  message.set_scored_tokens(tokens);
  message.set_logprob(outcome.logprob);
  message.set_perplexity(tokens == 0 ? 0.0 : std::exp(-outcome.logprob / tokens));
  message.set_scored_bytes(outcome.scored_bytes);
  *message.mutable_timings() = EncodeTimings(outcome.timings);
  return message;
}

}  // namespace aft::server
