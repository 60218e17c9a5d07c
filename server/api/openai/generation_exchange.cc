#include "server/api/openai/generation_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "server/api/aft/pending_sequences.h"
#include "server/api/aft/text_codec.h"
#include "server/api/aft/texts_codec.h"
#include "server/config/checks.h"

namespace aft::server::openai {
namespace {

// Bytes of text for each byte of chat's log-probabilities on the wire. An alternative has 11 bytes
// there, and as text about 45 bytes and 6 more for each byte of its token.
constexpr size_t kChatTextBytes = 8;

const char* FinishReasonName(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_LENGTH ? "length" : "stop";
}

// `copies`: how often the engine has counted each prompt.
OrderedJson UsageOf(const Usage& usage, uint32_t copies) {
  const uint32_t prompt_tokens = usage.prompt_tokens / copies;
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", usage.generated_tokens},
          {"total_tokens", prompt_tokens + usage.generated_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens / copies}}}};
}

}  // namespace

GenerationExchange::GenerationExchange(bool chat, const std::string& id)
    : JsonExchange(chat ? Method::kChatCompletions : Method::kCompletions,
                   absl::StrCat(chat ? "chatcmpl-" : "cmpl-", id)),
      chat_(chat),
      created_(SecondsNow()) {}

absl::Status GenerationExchange::CheckRequest() {
  AFT_ASSIGN_OR_RETURN(
      body_read_, ParseGeneration(TakeBody(), chat_ ? Endpoint::kChat : Endpoint::kCompletions));
  is_read_ = true;
  return absl::OkStatus();
}

absl::StatusOr<GenerationRequest> GenerationExchange::DecodePrompt(size_t prompt,
                                                                   const ServedModel& model,
                                                                   const LimitsConfig& limits) {
  v1::GenerateRequest& message = body_read_.options.message();
  if (!chat_) {
    const v1::Text& text = body_read_.prompts[static_cast<int>(prompt)];
    if (text.has_tokens()) {
      *message.mutable_tokens() = text.tokens();
    } else {
      message.set_text(text.text());
    }
  }
  auto request = codec_.Decode(message, limits, model, started_.emplace_back());
  if (request.ok()) return request;
  return RenameText(request.status(), chat_             ? "messages"
                                      : body_read_.list ? absl::StrCat("prompt[", prompt, "]")
                                                        : "prompt");
}

absl::StatusOr<DecodedRequest> GenerationExchange::Decode(const ServedModel& model,
                                                          const LimitsConfig& limits) {
  if (model.generate == nullptr || model.tokenizer == nullptr) return WrongTask(model, method_);
  v1::GenerateRequest& message = body_read_.options.message();
  if (chat_) {
    const ChatTemplate format = ChatTemplateOf(model.config, model.info);
    message.set_text(Render(format, body_read_.messages));
    auto& stops = *message.mutable_stop()->mutable_strings();
    if (stops.empty()) stops.Add(format.stop.begin(), format.stop.end());
  }
  const auto prompts = static_cast<size_t>(chat_ ? 1 : body_read_.prompts.size());
  if (prompts > 1) AFT_RETURN_IF_ERROR(CheckTexts("prompt", body_read_.prompts, limits));
  DecodedRequest decoded;
  Generations generations;
  int64_t tokens = 0;
  for (size_t i = 0; i < prompts; ++i) {
    AFT_ASSIGN_OR_RETURN(GenerationRequest request, DecodePrompt(i, model, limits));
    if (i > 0) {
      const GenerationRequest& first = generations.prompts.front();
      request.sampling.rules = first.sampling.rules;
      request.bad_words = first.bad_words;
    } else if (prompts > 1) {
      // These options become `rules` and `bad_words`, which do not depend on the prompt. It would
      // take seconds to tokenise the bad words again for each of many prompts.
      v1::SamplingOptions& sampling = *message.mutable_sampling();
      sampling.clear_bad_words();
      sampling.clear_logit_bias();
      sampling.clear_allowed_tokens();
      sampling.clear_banned_tokens();
    }
    const size_t bytes = codec_.kept_tokens(request) * sizeof(TokenId);
    // An answer that comes whole repeats its prompt (`echo`), escaped. A stream does so with one
    // event at a time.
    if (const std::string& echo = started_.back().prompt().text(); !echo.empty()) {
      decoded.bytes += (body_read_.stream ? 1 : codec_.sequences()) * Quoted(echo).size();
    }
    if (prompts == 1) {
      decoded.work = std::move(request);
      decoded.bytes += bytes;
      break;
    }
    // The prompts count together. Each answer waits with a copy of its prompt, and may wait in half
    // of the queue, because no client may fill more than that with more than one text.
    tokens += static_cast<int64_t>(request.prompt.size());
    const int64_t most = std::min(limits.max_prompt_tokens,
                                  limits.max_queued_tokens / 2 / int64_t{codec_.sequences()});
    if (tokens > most) {
      return BadField("prompt", absl::StrCat("must have at most ", most, " tokens together with n=",
                                             codec_.sequences(), ", more by prompt[", i, "]"));
    }
    generations.prompts.push_back(std::move(request));
    // Each sequence gets a copy of its prompt's tokens after the charge.
    decoded.bytes += (codec_.sequences() + 1) * bytes;
  }
  generations.answers = codec_.sequences();
  sequences_ = static_cast<uint32_t>(prompts) * codec_.sequences();
  if (prompts > 1) decoded.work = std::move(generations);
  decoded.sequences = sequences_;
  decoded.bytes += (sequences_ - 1) * kSequenceBytes;
  codec_.ExpectSequences(sequences_);
  choices_.resize(sequences_);
  tokenizer_ = model.tokenizer;
  model_ = model.config.name;
  if (body_read_.stream) {
    event_head_ = absl::StrCat("data: ", DumpJson(Envelope(/*chunk=*/true)));
    event_head_.back() = ',';  // instead of the closing brace
  }
  if (body_read_.stream && chat_) {
    OrderedJson choices = OrderedJson::array();
    for (uint32_t i = 0; i < sequences_; ++i) {
      choices.push_back({{"index", i},
                         {"delta", {{"role", "assistant"}, {"content", ""}}},
                         {"logprobs", nullptr},
                         {"finish_reason", nullptr}});
    }
    first_event_ = absl::StrCat(event_head_, "\"choices\":", DumpJson(choices), EventEnd());
  }
  return decoded;
}

absl::Status GenerationExchange::InOwnNames(const absl::Status& status) const {
  absl::Status own = status;
  absl::string_view rest = status.message();
  // For the engine each answer to one of several prompts is a text.
  if (uint32_t text = 0; is_read_ && absl::ConsumePrefix(&rest, "texts[") &&
                         absl::SimpleAtoi(rest.substr(0, rest.find(']')), &text)) {
    rest.remove_prefix(rest.find(']') + 1);
    own = absl::Status(status.code(), absl::StrCat(TextPath(text), rest));
  } else if (chat_ && is_read_ && absl::ConsumePrefix(&rest, "prompt: ")) {
    // An error of the body itself is about a field that it has.
    own = absl::Status(status.code(), absl::StrCat("messages: ", rest));
  }
  return openai::InOwnNames(body_read_, own);
}

void GenerationExchange::Prepare() {
  Texts().Swap(&body_read_.prompts);
  std::vector<ChatMessage>().swap(body_read_.messages);
  body_read_.options.message().clear_prompt();
}

std::string GenerationExchange::TextPath(uint32_t text) const {
  if (chat_ || !body_read_.list) return "";
  return absl::StrCat("prompt[", text / codec_.sequences(), "]");
}

const v1::Prompt& GenerationExchange::Prompt(uint32_t sequence) const {
  return started_[sequence / codec_.sequences()].prompt();
}

size_t GenerationExchange::TextBytes(size_t pending) const {
  const size_t each = chat_ && body_read_.logprobs ? kChatTextBytes : kHeldBytes;
  // Every answer that comes whole repeats the scores of the prompt.
  const bool repeated = SharesScores() && !body_read_.stream && ScoresPrompt();
  return (repeated ? sequences_ : 1) * each * pending;
}

OrderedJson GenerationExchange::Envelope(bool chunk) const {
  const char* const object = !chat_  ? "text_completion"
                             : chunk ? "chat.completion.chunk"
                                     : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

void GenerationExchange::AppendLogprobs(uint32_t index, const TokenIdList& ids,
                                        const LogprobList& logprobs, bool ended,
                                        std::string& json) {
  if (!body_read_.logprobs) {
    json += "null";
    return;
  }
  if (chat_) return AppendChatLogprobs(*tokenizer_, ids, logprobs, json);
  CompletionLogprobs& of_choice = choices_[index].logprobs;
  for (int i = 0; i < ids.size(); ++i) {
    of_choice.Add(*tokenizer_, ids[i], &logprobs[i]);
  }
  if (ended) AddEnd(index);
  of_choice.Take(json);
}

void GenerationExchange::AddPrompt(uint32_t index, const v1::ScoreChunk& scores) {
  if (!body_read_.logprobs) return;
  CompletionLogprobs& logprobs = choices_[index].logprobs;
  const TokenIdList& ids = Prompt(index).token_ids();
  for (int i = 0; i < ids.size(); ++i) {
    const int score = i - static_cast<int>(scores.first_index());
    const bool known = score >= 0 && score < scores.logprobs_size();
    logprobs.Add(*tokenizer_, ids[i], known ? &scores.logprobs(score) : nullptr);
  }
  logprobs.EndPrompt();
}

void GenerationExchange::AddEnd(uint32_t index) {
  const std::optional<SampledToken>& end = choices_[index].end;
  if (!ScoresPrompt() || !end.has_value()) return;
  v1::TokenLogprobs logprobs;
  AddLogprobs(*end, logprobs);
  choices_[index].logprobs.Add(*tokenizer_, static_cast<uint32_t>(end->id), &logprobs);
}

void GenerationExchange::AppendChoice(uint32_t index, const v1::CompleteResponse& response,
                                      std::string& json) {
  const v1::Answer& answer = response.answers(static_cast<int>(index));
  absl::StrAppend(&json, "{\"index\":", index,
                  chat_ ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"text\":",
                  Quoted(absl::StrCat(Prompt(index).text(), answer.text())), chat_ ? "}" : "");
  if (body_read_.token_ids) {
    absl::StrAppend(&json, ",\"token_ids\":[", absl::StrJoin(answer.token_ids(), ","), "]");
  }
  const int scored = SharesScores() ? 0 : static_cast<int>(index);
  AddPrompt(index, response.answers(scored).prompt_scores());
  json += ",\"logprobs\":";
  AppendLogprobs(index, answer.token_ids(), answer.logprobs(), /*ended=*/true, json);
  absl::StrAppend(&json, ",\"finish_reason\":\"", FinishReasonName(answer.finished().reason()),
                  "\"}");
}

void GenerationExchange::OpenEvent(uint32_t index, absl::string_view content,
                                   std::string& text) const {
  absl::StrAppend(&text, event_head_, "\"choices\":[{\"index\":", index, ",", content,
                  ",\"logprobs\":");
}

void GenerationExchange::CloseEvent(absl::string_view reason, std::string& text) const {
  absl::StrAppend(&text, ",\"finish_reason\":", reason, "}]", EventEnd());
}

// With include_usage every event has `usage`, which is null in all but the last one.
const char* GenerationExchange::EventEnd() const {
  return body_read_.usage ? ",\"usage\":null}\n\n" : "}\n\n";
}

std::string GenerationExchange::Text(const std::string& text) const {
  const std::string json = Quoted(text);
  return chat_ ? absl::StrCat("\"delta\":{\"content\":", json, "}")
               : absl::StrCat("\"text\":", json);
}

GenerationExchange::SharedScores GenerationExchange::TakeEcho(uint32_t index) {
  if (Prompt(index).token_ids().empty() || std::exchange(choices_[index].echoed, true)) {
    return nullptr;
  }
  if (!SharesScores()) return std::make_shared<v1::ScoreChunk>(codec_.TakePromptScores(index));
  if (shared_scores_ == nullptr) {
    const size_t bytes = codec_.pending_bytes();
    shared_scores_ = std::make_shared<v1::ScoreChunk>(codec_.TakePromptScores(0));
    shared_bytes_ = bytes - codec_.pending_bytes();
  }
  if (++echoes_ < sequences_) return shared_scores_;
  shared_bytes_ = 0;
  return std::exchange(shared_scores_, nullptr);
}

void GenerationExchange::AppendEcho(uint32_t index, const v1::ScoreChunk& scores,
                                    std::string& text) {
  AddPrompt(index, scores);
  OpenEvent(index, Text(Prompt(index).text()), text);
  AppendLogprobs(index, {}, {}, /*ended=*/false, text);
  CloseEvent("null", text);
}

void GenerationExchange::AppendEnd(uint32_t index, v1::FinishReason reason, std::string& text) {
  AddEnd(index);
  OpenEvent(index, chat_ ? "\"delta\":{}" : Text(""), text);
  if (choices_[index].logprobs.empty()) {
    text += "null";
  } else {
    choices_[index].logprobs.Take(text);
  }
  CloseEvent(absl::StrCat("\"", FinishReasonName(reason), "\""), text);
}

bool GenerationExchange::Take(std::string& /*state*/) {
  Taken taken;
  // The scores of a prompt wait until the model has read all of it.
  if (!body_read_.stream || !codec_.GenerateCodec::Take(taken.part, /*prompts=*/false)) {
    return false;
  }
  taken.echo = TakeEcho(taken.part.sequence());
  taken_ = std::move(taken);
  return true;
}

const google::protobuf::MessageLite& GenerationExchange::outgoing() {
  if (taken_.has_value()) {
    outgoing_.set_value(absl::StrCat(std::exchange(first_event_, ""), EventsOf(*taken_)));
    taken_.reset();
  }
  return outgoing_;
}

std::string GenerationExchange::EventsOf(const Taken& taken) {
  const uint32_t index = taken.part.sequence();
  std::string text;
  if (body_read_.logprobs) text.reserve(TextBytes(taken.part.ByteSizeLong()));
  if (taken.echo != nullptr) AppendEcho(index, *taken.echo, text);
  if (!taken.part.has_delta()) {
    AppendEnd(index, taken.part.finished().reason(), text);
    return text;
  }
  const v1::Delta& delta = taken.part.delta();
  std::string content = Text(delta.text());
  if (body_read_.token_ids) {
    absl::StrAppend(&content, ",\"token_ids\":[", absl::StrJoin(delta.token_ids(), ","), "]");
  }
  OpenEvent(index, content, text);
  AppendLogprobs(index, delta.token_ids(), delta.logprobs(), /*ended=*/false, text);
  CloseEvent("null", text);
  return text;
}

absl::string_view GenerationExchange::too_much() const {
  if (body_read_.stream && ScoresPrompt()) {
    return "slow client, or log-probabilities of the prompt that are larger than "
           "max_stream_buffer_bytes";
  }
  return body_read_.stream ? Exchange::too_much()
                           : "the answer is larger than max_stream_buffer_bytes: ask for less (n, "
                             "max_tokens, logprobs), or for a stream";
}

bool GenerationExchange::Finish(const Outcome& outcome, const v1::State* stored) {
  if (body_read_.stream) {
    taken_.reset();  // it is still there if the client is gone
    std::string text = std::exchange(first_event_, "");
    if (sequences_ == 1) {
      Taken last;
      codec_.GenerateCodec::Finish(outcome, *last.part.mutable_finished());
      choices_[0].end = outcome.end_token;
      last.echo = TakeEcho(0);
      text += EventsOf(last);
    }
    if (body_read_.usage) {
      absl::StrAppend(&text, event_head_,
                      "\"choices\":[],\"usage\":", DumpJson(UsageOf(outcome.usage, copies())),
                      "}\n\n");
    }
    outgoing_.set_value(absl::StrCat(text, "data: [DONE]\n\n"));
    return true;
  }
  if (sequences_ == 1) AppendFinished(outcome, 0, stored);
  std::string json = DumpJson(Envelope(/*chunk=*/false));
  if (body_read_.logprobs) json.reserve(held_bytes());
  json.back() = ',';  // instead of the closing brace
  json += "\"choices\":[";
  v1::CompleteResponse response;
  codec_.TakeAnswers(response);
  for (uint32_t i = 0; i < sequences_; ++i) {
    if (i > 0) json += ',';
    AppendChoice(i, response, json);
  }
  absl::StrAppend(&json, "],\"usage\":", DumpJson(UsageOf(outcome.usage, copies())), "}");
  outgoing_.set_value(std::move(json));
  return true;
}

}  // namespace aft::server::openai
