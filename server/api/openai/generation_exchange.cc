#include "server/api/openai/generation_exchange.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "server/api/aft/text_codec.h"
#include "server/config/checks.h"
#include "server/engine/token_bytes.h"

namespace aft::server::openai {
namespace {

const char* FinishReasonName(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_LENGTH ? "length" : "stop";
}

OrderedJson UsageOf(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.generated_tokens},
          {"total_tokens", usage.prompt_tokens + usage.generated_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

}  // namespace

GenerationExchange::GenerationExchange(bool chat, const std::string& id)
    : JsonExchange(chat ? Method::kChatCompletions : Method::kCompletions,
                   absl::StrCat(chat ? "chatcmpl-" : "cmpl-", id)),
      chat_(chat),
      created_(SecondsNow()) {}

absl::Status GenerationExchange::CheckRequest() {
  AFT_ASSIGN_OR_RETURN(
      body_read_, ParseGeneration(body_.value(), chat_ ? Endpoint::kChat : Endpoint::kCompletions));
  body_.Clear();
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
    const ChatFormat format = FormatOf(model.config);
    message.set_text(Render(format, body_read_.messages));
    auto& stops = *message.mutable_stop()->mutable_strings();
    if (stops.empty()) stops.Add(format.stop.begin(), format.stop.end());
  }
  const auto prompts = static_cast<size_t>(chat_ ? 1 : body_read_.prompts.size());
  if (prompts > static_cast<size_t>(limits.max_texts)) {
    return BadField("prompt", absl::StrCat("must have at most ", limits.max_texts,
                                           " entries (limits.max_texts), got ", prompts));
  }
  DecodedRequest decoded;
  Generations generations;
  started_.clear();
  for (size_t i = 0; i < prompts; ++i) {
    AFT_ASSIGN_OR_RETURN(GenerationRequest request, DecodePrompt(i, model, limits));
    const size_t bytes = codec_.kept_tokens(request) * sizeof(TokenId);
    if (prompts == 1) {
      decoded.work = std::move(request);
      decoded.bytes = bytes;
      break;
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
  echoed_.resize(sequences_);
  tokenizer_ = model.tokenizer;
  model_ = model.config.name;
  if (body_read_.stream) {
    event_head_ = absl::StrCat("data: ", Dump(Envelope(/*chunk=*/true)));
    event_head_.back() = ',';  // instead of the closing brace
  }
  if (has_first_message()) {
    OrderedJson choices = OrderedJson::array();
    for (uint32_t i = 0; i < sequences_; ++i) {
      choices.push_back({{"index", i},
                         {"delta", {{"role", "assistant"}, {"content", ""}}},
                         {"logprobs", nullptr},
                         {"finish_reason", nullptr}});
    }
    outgoing_.set_value(absl::StrCat(event_head_, "\"choices\":", Dump(choices), "}\n\n"));
  }
  return decoded;
}

absl::Status GenerationExchange::InOwnNames(const absl::Status& status) const {
  absl::string_view rest = status.message();
  if (!absl::ConsumePrefix(&rest, "texts: ")) return openai::InOwnNames(body_read_, status);
  return absl::Status(status.code(), absl::StrCat("prompt: ", rest));
}

void GenerationExchange::Prepare() {
  Texts().Swap(&body_read_.prompts);
  body_read_.messages = {};
  body_read_.options.message().clear_prompt();
}

std::string GenerationExchange::TextPath(uint32_t text) const {
  if (chat_ || !body_read_.list) return "";
  return absl::StrCat("prompt[", text / codec_.sequences(), "]");
}

const std::string& GenerationExchange::Prompt(uint32_t sequence) const {
  return started_[sequence / codec_.sequences()].prompt().text();
}

OrderedJson GenerationExchange::Envelope(bool chunk) const {
  const char* const object = !chat_  ? "text_completion"
                             : chunk ? "chat.completion.chunk"
                                     : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

std::string GenerationExchange::Token(uint32_t id) const {
  const std::string bytes(TokenBytes(*tokenizer_, static_cast<TokenId>(id)));
  std::string text = ToValidUtf8(bytes);
  if (chat_ || text == bytes) return text;
  // Completions have no field for bytes. OpenAI writes a part of a character in this form.
  text = "bytes:";
  for (const char c : bytes) {
    absl::StrAppend(&text, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  }
  return text;
}

OrderedJson GenerationExchange::Logprobs(
    const google::protobuf::RepeatedField<uint32_t>& ids,
    const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& logprobs) const {
  if (!body_read_.logprobs) return nullptr;
  const auto bytes_of = [this](uint32_t id) {
    const std::string bytes(TokenBytes(*tokenizer_, static_cast<TokenId>(id)));
    OrderedJson list = OrderedJson::array();
    for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
    return list;
  };
  OrderedJson content = OrderedJson::array();
  OrderedJson tokens = OrderedJson::array();
  OrderedJson own = OrderedJson::array();
  OrderedJson tops = OrderedJson::array();
  for (int i = 0; i < ids.size() && i < logprobs.size(); ++i) {
    const v1::TokenLogprobs& logprob = logprobs[i];
    const std::string token = Token(ids[i]);
    if (chat_) {
      OrderedJson top = OrderedJson::array();
      for (const v1::Alternative& other : logprob.top()) {
        top.push_back({{"token", Token(other.token_id())},
                       {"logprob", other.logprob()},
                       {"bytes", bytes_of(other.token_id())}});
      }
      content.push_back({{"token", token},
                         {"logprob", logprob.logprob()},
                         {"bytes", bytes_of(ids[i])},
                         {"top_logprobs", std::move(top)}});
      continue;
    }
    tokens.push_back(token);
    own.push_back(logprob.logprob());
    OrderedJson top = OrderedJson::object();
    for (const v1::Alternative& other : logprob.top()) {
      top[Token(other.token_id())] = other.logprob();
    }
    if (!top.contains(token)) top[token] = logprob.logprob();
    tops.push_back(std::move(top));
  }
  if (chat_) return {{"content", std::move(content)}};
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(own)},
          {"top_logprobs", std::move(tops)}};
}

OrderedJson GenerationExchange::Choice(
    uint32_t index, const std::string& text, const google::protobuf::RepeatedField<uint32_t>& ids,
    const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& logprobs) const {
  OrderedJson choice = {{"index", index}};
  if (!chat_) {
    choice["text"] = text;
  } else {
    choice["message"] = {{"role", "assistant"}, {"content", text}};
  }
  if (body_read_.token_ids) choice["token_ids"] = ids;
  choice["logprobs"] = Logprobs(ids, logprobs);
  choice["finish_reason"] = nullptr;
  return choice;
}

std::string GenerationExchange::EventOf(uint32_t index, absl::string_view content,
                                        absl::string_view logprobs,
                                        absl::string_view reason) const {
  return absl::StrCat(event_head_, "\"choices\":[{\"index\":", index, ",", content,
                      ",\"logprobs\":", logprobs, ",\"finish_reason\":", reason, "}]}\n\n");
}

std::string GenerationExchange::Text(const std::string& text) const {
  const std::string json = Dump(OrderedJson(text));
  return chat_ ? absl::StrCat("\"delta\":{\"content\":", json, "}")
               : absl::StrCat("\"text\":", json);
}

std::string GenerationExchange::EndEvent(uint32_t index, v1::FinishReason reason) const {
  return EventOf(index, chat_ ? "\"delta\":{}" : Text(""), "null",
                 absl::StrCat("\"", FinishReasonName(reason), "\""));
}

bool GenerationExchange::Take(std::string& /*state*/) {
  v1::GenerateResponse part;
  if (!body_read_.stream || !codec_.GenerateCodec::Take(part)) return false;
  const uint32_t index = part.sequence();
  if (!part.has_delta()) {
    outgoing_.set_value(EndEvent(index, part.finished().reason()));
    return true;
  }
  const v1::Delta& delta = part.delta();
  std::string text = delta.text();
  if (!echoed_[index]) {
    echoed_[index] = true;
    text = Prompt(index) + text;
  }
  const OrderedJson logprobs = Logprobs(delta.token_ids(), delta.logprobs());
  std::string content = Text(text);
  if (body_read_.token_ids) {
    absl::StrAppend(&content, ",\"token_ids\":[", absl::StrJoin(delta.token_ids(), ","), "]");
  }
  outgoing_.set_value(EventOf(index, content, Dump(logprobs), "null"));
  return true;
}

absl::string_view GenerationExchange::too_much() const {
  return body_read_.stream ? Exchange::too_much()
                           : "the answer is larger than max_stream_buffer_bytes: ask for less (n, "
                             "max_tokens, logprobs), or for a stream";
}

bool GenerationExchange::Finish(const Outcome& outcome, const v1::State* stored) {
  if (body_read_.stream) {
    std::string text;
    if (sequences_ == 1) {
      v1::Finished finished;
      codec_.GenerateCodec::Finish(outcome, finished);
      text = EndEvent(0, finished.reason());
    }
    if (body_read_.usage) {
      absl::StrAppend(&text, event_head_, "\"choices\":[],\"usage\":", Dump(UsageOf(outcome.usage)),
                      "}\n\n");
    }
    outgoing_.set_value(absl::StrCat(text, "data: [DONE]\n\n"));
    return true;
  }
  if (sequences_ == 1) codec_.AppendFinished(outcome, 0, stored);
  v1::CompleteResponse response;
  codec_.TakeAnswers(response);
  OrderedJson choices = OrderedJson::array();
  for (int i = 0; i < response.answers_size(); ++i) {
    const v1::Answer& answer = response.answers(i);
    OrderedJson choice = Choice(static_cast<uint32_t>(i),
                                absl::StrCat(Prompt(static_cast<uint32_t>(i)), answer.text()),
                                answer.token_ids(), answer.logprobs());
    choice["finish_reason"] = FinishReasonName(answer.finished().reason());
    choices.push_back(std::move(choice));
  }
  OrderedJson json = Envelope(/*chunk=*/false);
  json["choices"] = std::move(choices);
  json["usage"] = UsageOf(outcome.usage);
  outgoing_.set_value(Dump(json));
  return true;
}

}  // namespace aft::server::openai
