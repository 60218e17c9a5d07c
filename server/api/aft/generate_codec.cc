#include "server/api/aft/generate_codec.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "server/api/aft/bad_words_codec.h"
#include "server/api/aft/logit_rules_codec.h"
#include "server/api/aft/option_rules.h"
#include "server/api/aft/resume_codec.h"
#include "server/call/call_ids.h"
#include "server/call/outcome_messages.h"
#include "server/config/checks.h"

namespace aft::server {
namespace {

constexpr uint32_t kMaxSequences = 16;

// StopMatcher has a node of 28 bytes for each byte of the stop strings.
constexpr size_t kTokensPerStopByte = 28 / sizeof(TokenId);

absl::StatusOr<SamplingParams> DecodeSampling(const v1::SamplingOptions& message) {
  AFT_RETURN_IF_ERROR(CheckOptions(message));
  SamplingParams params;
  if (message.preset() == kRwkvPreset) {
    // The defaults of the package rwkv (0.8.32), class PIPELINE_ARGS.
    params.top_p = 0.85F;
    params.presence_penalty = 0.2F;
    params.frequency_penalty = 0.2F;
    params.penalty_decay = 0.996F;
    params.temperature_last = true;
  } else {
    AFT_RETURN_IF_ERROR(CheckOneOf("sampling.preset", message.preset(), {kRwkvPreset, ""}));
  }
  if (message.has_temperature()) params.temperature = message.temperature();
  if (message.has_top_p()) params.top_p = message.top_p();
  if (message.has_min_p()) params.min_p = message.min_p();
  if (message.has_repetition_penalty()) params.repetition_penalty = message.repetition_penalty();
  if (message.has_presence_penalty()) params.presence_penalty = message.presence_penalty();
  if (message.has_frequency_penalty()) params.frequency_penalty = message.frequency_penalty();
  if (message.has_penalty_decay()) params.penalty_decay = message.penalty_decay();
  if (message.has_temperature_last()) params.temperature_last = message.temperature_last();
  // A top_k above the size of the vocabulary keeps all tokens, so clamping has no effect.
  params.top_k = static_cast<int32_t>(
      std::min<uint32_t>(message.top_k(), std::numeric_limits<int32_t>::max()));
  params.seed = message.has_seed() ? message.seed() : RandomUint64();
  return params;
}

// `least`: the smallest max_tokens that is accepted.
absl::StatusOr<StopConditions> DecodeStop(const v1::StopOptions& message, uint32_t least,
                                          const LimitsConfig& limits, int64_t vocab_size) {
  StopConditions stop;
  stop.max_tokens = limits.default_max_tokens;
  if (message.has_max_tokens()) {
    if (message.max_tokens() < least || int64_t{message.max_tokens()} > limits.max_max_tokens) {
      return BadField(
          "stop.max_tokens",
          absl::StrCat("must be in [", least, ", ", limits.max_max_tokens, "], got ",
                       message.max_tokens(), message.max_tokens() == 0 ? kZeroTokensHint : ""));
    }
    stop.max_tokens = static_cast<int32_t>(message.max_tokens());
  }
  if (message.min_tokens() > static_cast<uint32_t>(stop.max_tokens)) {
    return BadField("stop.min_tokens",
                    absl::StrCat("must be at most max_tokens = ", stop.max_tokens, ", got ",
                                 message.min_tokens()));
  }
  stop.min_tokens = static_cast<int32_t>(message.min_tokens());
  AFT_RETURN_IF_ERROR(CheckOptions(message));
  for (int i = 0; i < message.strings_size(); ++i) {
    const std::string& text = message.strings(i);
    if (text.empty() || text.size() > kMaxStopStringBytes) {
      return BadField(
          absl::StrCat("stop.strings[", i, "]"),
          absl::StrCat("must have 1 to ", kMaxStopStringBytes, " bytes, got ", text.size()));
    }
    stop.strings.push_back(text);
  }
  AFT_RETURN_IF_ERROR(
      DecodeTokens("stop.token_ids", message.token_ids(), vocab_size, stop.token_ids));
  stop.include_stop_string = message.include_stop_string();
  stop.ignore_eos = message.ignore_eos();
  return stop;
}

v1::FinishReason EncodeReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return v1::FINISH_REASON_EOS;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kDone:
      break;  // never the reason of a generation
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<GenerationRequest> GenerateCodec::Decode(const Request& message,
                                                        const LimitsConfig& limits,
                                                        const ServedModel& model,
                                                        v1::Started& started) {
  const int64_t vocab_size = model.info.vocab_size;
  GenerationRequest request;
  AFT_ASSIGN_OR_RETURN(request.service_class,
                       DecodePriority(message.priority(), ServiceClass::kNormal));
  AFT_RETURN_IF_ERROR(CheckLength("cache_salt", message.cache_salt().size(), kMaxCacheSaltBytes));
  request.cache_salt = message.cache_salt();
  AFT_ASSIGN_OR_RETURN(request.previous,
                       FindInitialState(message.initial_state(), message.has_previous(), model));
  AFT_ASSIGN_OR_RETURN(request.sampling, DecodeSampling(message.sampling()));
  AFT_ASSIGN_OR_RETURN(request.stop, DecodeStop(message.stop(), message.prompt_logprobs() ? 0 : 1,
                                                limits, vocab_size));
  AFT_ASSIGN_OR_RETURN(BadWords words, DecodeBadWords(message.sampling(), model));
  AFT_ASSIGN_OR_RETURN(request.sampling.rules,
                       DecodeLogitRules(message.sampling(), words.tokens, request.stop, model));
  request.bad_words = std::move(words.sequences);
  AFT_ASSIGN_OR_RETURN(request.sampling.top_logprobs,
                       DecodeTopLogprobs(message.output(), /*unset=*/-1));
  AFT_ASSIGN_OR_RETURN(request.prompt, DecodeText(TextOf(message, "prompt"),
                                                  {.limits = limits,
                                                   .tokenizer = *model.tokenizer,
                                                   .vocab_size = vocab_size,
                                                   .may_be_empty = message.has_previous()}));
  with_logprobs_ = message.output().has_top_logprobs();
  request.prompt_scores = message.prompt_logprobs();
  if (message.has_n()) {
    if (message.n() < 1 || message.n() > kMaxSequences) {
      return BadField("n", absl::StrCat("must be in [1, ", kMaxSequences, "], got ", message.n()));
    }
    if (message.n() > 1 && request.stop.max_tokens == 0) {
      return BadField("n", "must be 1 if max_tokens is 0: all answers would be the same");
    }
    sequences_ = message.n();
  }
  started.set_seed(request.sampling.seed);
  started.set_prompt_tokens(static_cast<uint32_t>(request.prompt.size()));
  started.set_fingerprint(model.info.fingerprint);
  started.set_numerics(NumericsOf(model.info, request));
  if (message.output().echo()) {
    AFT_RETURN_IF_ERROR(Echo(request, limits, *model.tokenizer, *started.mutable_prompt()));
  }
  if (message.has_resume()) AFT_RETURN_IF_ERROR(DecodeResume(message, model, request));
  return request;
}

absl::Status GenerateCodec::Echo(const GenerationRequest& request, const LimitsConfig& limits,
                                 const Tokenizer& tokenizer, v1::Prompt& prompt) {
  std::string text = ToValidUtf8(BytesOf(request.prompt, tokenizer));
  if (static_cast<int64_t>(text.size()) > limits.max_prompt_bytes) {
    return BadField("output.echo",
                    absl::StrCat("must not be set: the prompt's text has ", text.size(),
                                 " bytes, at most ", limits.max_prompt_bytes, " are repeated"));
  }
  prompt.mutable_token_ids()->Assign(request.prompt.begin(), request.prompt.end());
  prompt.set_text(std::move(text));
  echo_bytes_ = prompt.SpaceUsedLong();
  return absl::OkStatus();
}

size_t GenerateCodec::kept_tokens(const GenerationRequest& request) const {
  const auto& rules = request.sampling.rules;
  const size_t rules_bytes = rules != nullptr ? rules->rules.size() * sizeof(LogitRule) : 0;
  size_t bad_words = 0;  // tokens
  if (request.bad_words != nullptr) {
    for (const std::vector<TokenId>& sequence : *request.bad_words) bad_words += sequence.size();
  }
  size_t stops = 0;  // bytes
  for (const std::string& text : request.stop.strings) stops += text.size();
  return request.prompt.size() + bad_words + kTokensPerStopByte * stops +
         (echo_bytes_ + rules_bytes) / sizeof(TokenId);
}

void GenerateCodec::Append(Part part, uint32_t sequence) {
  Pending& of_sequence = pending_[sequence];
  const bool is_tail = part.tokens.empty() && of_sequence.part.message.delta().token_ids_size() > 0;
  Waiting& pending = part.of_prompt ? of_sequence.prompt
                     : is_tail      ? of_sequence.tail
                                    : of_sequence.part;
  pending.message.set_sequence(sequence);
  if (part.of_prompt) {
    return Grew(pending, AddScores(part, *pending.message.mutable_prompt_scores()));
  }
  v1::Delta& message = *pending.message.mutable_delta();
  if (message.token_ids_size() == 0) message.set_first_index(part.first_index);
  size_t bytes = part.text.size();
  message.mutable_text()->append(part.text);
  for (const SampledToken& token : part.tokens) {
    message.add_token_ids(static_cast<uint32_t>(token.id));
    bytes += 3;
    if (with_logprobs_) bytes += AddLogprobs(token, *message.add_logprobs());
  }
  Grew(pending, bytes);
}

void GenerateCodec::AppendFinished(const Outcome& outcome, uint32_t sequence,
                                   const v1::State* state) {
  v1::GenerateResponse message;
  message.set_sequence(sequence);
  Finish(outcome, *message.mutable_finished());
  if (state != nullptr) *message.mutable_finished()->mutable_state() = *state;
  AddFinished(std::move(message), sequence);
}

void GenerateCodec::Finish(const Outcome& outcome, v1::Finished& finished) const {
  finished.set_reason(EncodeReason(outcome.reason));
  if (outcome.reason == FinishReason::kLength) {
    finished.set_limit(outcome.limit);
  } else if (outcome.reason == FinishReason::kStop && outcome.stop_token_id >= 0) {
    finished.set_stop_token_id(static_cast<uint32_t>(outcome.stop_token_id));
  } else if (outcome.reason == FinishReason::kStop) {
    finished.set_stop_string(outcome.stop_string);
  }
  *finished.mutable_usage() = EncodeUsage(outcome.usage);
  *finished.mutable_timings() = EncodeTimings(outcome.timings);
}

}  // namespace aft::server
