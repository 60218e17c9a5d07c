#include "server/api/aft/score_codec.h"

#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "server/api/aft/resume_codec.h"
#include "server/call/outcome_messages.h"

namespace aft::server {

absl::StatusOr<ScoringRequest> ScoreCodec::Decode(const Request& message,
                                                  const LimitsConfig& limits,
                                                  const ServedModel& model,
                                                  v1::ScoreStarted& started) {
  ScoringRequest request;
  AFT_ASSIGN_OR_RETURN(request.service_class,
                       DecodePriority(message.priority(), ServiceClass::kBatch));
  if (message.output().echo()) {
    return BadField("output.echo", "must not be set: only Generate and Complete have it");
  }
  AFT_ASSIGN_OR_RETURN(request.top_logprobs, DecodeTopLogprobs(message.output(), /*unset=*/0));
  TextRules rules = {
      .limits = limits, .tokenizer = *model.tokenizer, .vocab_size = model.info.vocab_size};
  if (model.info.max_seq_len != 0) {
    rules.max_tokens = model.info.max_seq_len;
    rules.max_tokens_name = "the model's max_seq_len";
  }
  if (message.has_resume() && !message.texts().empty()) {
    return BadField("resume",
                    "must not be set together with texts: send the texts without ScoreFinished "
                    "again instead");
  }
  if (message.context_tokens() > 0 && !message.texts().empty()) {
    return BadField("context_tokens",
                    "must not be set together with texts: it is for one text only");
  }
  if (message.context_tokens() > 0 && message.has_previous()) {
    return BadField("context_tokens",
                    "must not be set together with previous: that text is the context already");
  }
  AFT_RETURN_IF_ERROR(CheckLength("cache_salt", message.cache_salt().size(), kMaxCacheSaltBytes));
  request.cache_salt = message.cache_salt();
  AFT_ASSIGN_OR_RETURN(request.previous,
                       FindInitialState(message.initial_state(), message.has_previous(), model));
  request.context = message.context_tokens();
  AFT_RETURN_IF_ERROR(DecodeTexts(message, "text_to_score", rules, started));
  started.set_fingerprint(model.info.fingerprint);
  started.set_numerics(NumericsOf(model.info, request));
  request.survival.resumable = message.resumable();
  if (message.has_resume()) {
    AFT_RETURN_IF_ERROR(DecodeResume(message, model, request));
    started.set_exact(IsExact(message.resume(), started.numerics()));
  }
  return request;
}

void ScoreCodec::Append(Part part, uint32_t sequence) {
  auto& pending = pending_[sequence].part;
  pending.message.set_index(sequence);
  Grew(pending, AddScores(part, *pending.message.mutable_chunk()));
}

void ScoreCodec::AppendFinished(const Outcome& outcome, uint32_t sequence, const v1::State* state) {
  v1::ScoreResponse message;
  message.set_index(sequence);
  Finish(outcome, *message.mutable_finished());
  if (state != nullptr) *message.mutable_finished()->mutable_state() = *state;
  AddFinished(std::move(message), sequence);
}

void ScoreCodec::Finish(const Outcome& outcome, v1::ScoreFinished& finished) const {
  const uint32_t tokens = outcome.usage.scored_tokens;
  finished.set_scored_tokens(tokens);
  finished.set_logprob(outcome.logprob);
  finished.set_perplexity(tokens == 0 ? 0.0 : std::exp(-outcome.logprob / tokens));
  finished.set_scored_bytes(outcome.scored_bytes);
  *finished.mutable_usage() = EncodeUsage(outcome.usage);
  *finished.mutable_timings() = EncodeTimings(outcome.timings);
}

}  // namespace aft::server
