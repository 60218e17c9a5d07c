#include "server/api/openai/responses_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "server/api/aft/option_rules.h"
#include "server/config/checks.h"
#include "server/states/state_store.h"

namespace aft::server::openai {
namespace {

constexpr char kIdPrefix[] = "resp_";
// The room that is reserved for the note of a stored response. If the note is larger, the response
// is not stored.
constexpr size_t kBytesPerToken = 16;
constexpr size_t kFurtherBytes = 512;

// A double that JSON shows as the client wrote the option.
double JsonNumber(float value) {
  double shown = 0;
  return absl::SimpleAtod(AsWritten(value), &shown) ? shown : value;
}

OrderedJson OrNull(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

}  // namespace

std::string StateIdOf(const std::string& response_id) {
  absl::string_view id = response_id;
  return absl::ConsumePrefix(&id, kIdPrefix) && id.size() == StateStore::kIdBytes ? std::string(id)
                                                                                  : "";
}

// A note is a line with the stop string that ended the text, as JSON, and the response.
absl::string_view ResponseOf(const SequenceState& state) {
  const absl::string_view note = state.note;
  const size_t line = note.find('\n');
  return line == absl::string_view::npos ? absl::string_view() : note.substr(line + 1);
}

std::string WithId(absl::string_view response, const std::string& id) {
  // The id is the first member, and all ids have the same length.
  constexpr absl::string_view kBefore = "{\"id\":\"";
  return absl::StrCat(kBefore, id, response.substr(kBefore.size() + id.size()));
}

ResponsesExchange::ResponsesExchange(std::string id)
    : JsonExchange(Method::kResponses, std::move(id)),
      created_(SecondsNow()),
      response_id_(absl::StrCat(kIdPrefix, id_)) {}

absl::Status ResponsesExchange::CheckRequest() {
  AFT_ASSIGN_OR_RETURN(request_, ParseGeneration(TakeBody(), Endpoint::kResponses));
  is_read_ = true;
  if (request_.previous.empty()) return absl::OkStatus();
  previous_.set_state_id(StateIdOf(request_.previous));
  if (!previous_.state_id().empty()) return absl::OkStatus();
  return absl::NotFoundError("previous_response_id: there is no such response");
}

absl::StatusOr<DecodedRequest> ResponsesExchange::Decode(const ServedModel& model,
                                                         const LimitsConfig& limits) {
  if (model.generate == nullptr || model.tokenizer == nullptr) return WrongTask(model, method_);
  const ChatTemplate format = ChatTemplateOf(model.config, model.info);
  v1::GenerateRequest& message = request_.options.message();
  if (request_.previous.empty()) {
    std::vector<ChatMessage> messages = request_.messages;
    if (!request_.instructions.empty()) {
      messages.insert(messages.begin(), {"system", request_.instructions});
    }
    message.set_text(Render(format, messages));
  } else if (continues_) {
    message.set_text(Continue(format, stop_, request_.messages));
  }
  // Until its state is found, a continuation has neither text nor stop strings: the text depends on
  // the state, and the state may need another version, whose template may have other stop strings.
  if (request_.previous.empty() || continues_) {
    auto& stops = *message.mutable_stop()->mutable_strings();
    if (stops.empty()) stops.Add(format.stop.begin(), format.stop.end());
  }
  if (!request_.previous.empty()) message.mutable_previous();  // the text may be empty
  v1::Started started;
  auto decoding = codec_.Decode(message, limits, model, started);
  if (!decoding.ok()) return RenameText(decoding.status(), "input");
  GenerationRequest request = *std::move(decoding);
  model_ = model.config.name;
  max_tokens_ = request.stop.max_tokens;
  temperature_ = request.sampling.temperature;
  top_p_ = request.sampling.top_p;
  const size_t repeated = DumpJson(Response(nullptr, true)).size();
  note_bytes_ = repeated + kFurtherBytes + kBytesPerToken * static_cast<size_t>(max_tokens_);
  DecodedRequest decoded;
  // The first two events of a stream and its last one repeat the request's fields, each in a copy.
  decoded.bytes = codec_.kept_tokens(request) * sizeof(TokenId) + 8 * repeated;
  decoded.work = std::move(request);
  return decoded;
}

Continuation ResponsesExchange::continuation() const {
  Continuation continuation;
  if (!request_.previous.empty()) continuation.previous = &previous_;
  if (request_.store.value_or(true)) continuation.store = &store_;
  continuation.store_if_room = !request_.store.has_value();
  continuation.note_bytes = note_bytes_;
  return continuation;
}

absl::StatusOr<bool> ResponsesExchange::SetPrevious(const SequenceState& previous) {
  const absl::string_view text = ResponseOf(previous);
  const absl::string_view head =
      absl::string_view(previous.note).substr(0, previous.note.find('\n'));
  Json before;
  Json stop;
  ParseJson(text, before);
  ParseJson(head, stop);
  if (!before.is_object() || !stop.is_string()) {  // a text that is no JSON is null
    return absl::NotFoundError("previous_response_id: there is no such response");
  }
  const Json& instructions = before.at("instructions");
  if (!request_.instructions.empty() && instructions != request_.instructions) {
    return BadField("instructions",
                    "must be absent or equal to those of the previous response, because the model "
                    "has read them");
  }
  request_.instructions = instructions.is_string() ? instructions.get<std::string>() : "";
  stop_ = stop.get<std::string>();
  continues_ = true;
  return true;
}

void ResponsesExchange::SetStateId(const std::string& id) {
  response_id_ = absl::StrCat(kIdPrefix, id);
  stores_ = true;
}

absl::Status ResponsesExchange::InOwnNames(const absl::Status& status) const {
  absl::string_view rest = status.message();
  // An error of the body itself is about a field that it has.
  if (!is_read_) return openai::InOwnNames(request_, status);
  for (const auto& [field, own] :
       {std::pair("previous.state_id: ", "previous_response_id: "),
        std::pair("previous: ", "previous_response_id: "), std::pair("prompt: ", "input: ")}) {
    if (absl::ConsumePrefix(&rest, field)) {
      return openai::InOwnNames(request_, absl::Status(status.code(), absl::StrCat(own, rest)));
    }
  }
  return openai::InOwnNames(request_, status);
}

OrderedJson ResponsesExchange::Item(const char* status, bool with_text) const {
  OrderedJson content = OrderedJson::array();
  if (with_text) {
    content.push_back({{"type", "output_text"},
                       {"annotations", OrderedJson::array()},
                       {"logprobs", OrderedJson::array()},
                       {"text", text_}});
  }
  return {{"type", "message"},
          {"id", absl::StrCat("msg_", id_)},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

OrderedJson ResponsesExchange::Response(const Outcome* outcome, bool stored) const {
  const bool cut = outcome != nullptr && outcome->reason == FinishReason::kLength;
  const char* const status = outcome == nullptr ? "in_progress" : cut ? "incomplete" : "completed";
  OrderedJson output = OrderedJson::array();
  if (outcome != nullptr) output.push_back(Item(status, /*with_text=*/true));
  OrderedJson json = {{"id", response_id_},
                      {"object", "response"},
                      {"created_at", created_},
                      {"status", status},
                      {"error", nullptr}};
  json["incomplete_details"] = cut ? OrderedJson{{"reason", "max_output_tokens"}} : OrderedJson();
  json["instructions"] = OrNull(request_.instructions);
  json["max_output_tokens"] = max_tokens_;
  json["model"] = model_;
  json["output"] = std::move(output);
  json["parallel_tool_calls"] = false;
  json["previous_response_id"] = OrNull(request_.previous);
  json["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  json["store"] = stored;
  json["temperature"] = JsonNumber(temperature_);
  json["text"] = {{"format", {{"type", "text"}}}};
  json["tool_choice"] = "none";
  json["tools"] = OrderedJson::array();
  json["top_p"] = JsonNumber(top_p_);
  json["truncation"] = "disabled";
  json["usage"] = nullptr;
  if (outcome != nullptr) {
    const Usage& usage = outcome->usage;
    json["usage"] = {{"input_tokens", usage.prompt_tokens},
                     {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
                     {"output_tokens", usage.generated_tokens},
                     {"output_tokens_details", {{"reasoning_tokens", 0}}},
                     {"total_tokens", usage.prompt_tokens + usage.generated_tokens}};
  }
  json["metadata"] = request_.metadata;
  return json;
}

void ResponsesExchange::AddEvent(const char* type, const OrderedJson& fields) {
  OrderedJson event = {{"type", type}, {"sequence_number", events_++}};
  event.update(fields);
  absl::StrAppend(outgoing_.mutable_value(), "event: ", type, "\ndata: ", DumpJson(event), "\n\n");
}

// Clients that know only the other endpoints look for the member `error`.
std::string ResponsesExchange::ErrorEvent(const OrderedJson& error) {
  outgoing_.clear_value();
  AddEvent("error", {{"code", error["code"]},
                     {"message", error["message"]},
                     {"param", error["param"]},
                     {"error", error}});
  return text();
}

void ResponsesExchange::Prepare() {
  std::vector<ChatMessage>().swap(request_.messages);
  request_.options.message().clear_prompt();
  if (!request_.stream) return;
  const OrderedJson response = Response(nullptr, stores_);
  AddEvent("response.created", {{"response", response}});
  AddEvent("response.in_progress", {{"response", response}});
  AddEvent("response.output_item.added",
           {{"output_index", 0}, {"item", Item("in_progress", /*with_text=*/false)}});
  AddEvent("response.content_part.added",
           InPart("part", Item("", /*with_text=*/true)["content"][0]));
}

OrderedJson ResponsesExchange::InPart(const char* name, OrderedJson value) const {
  return {{"item_id", absl::StrCat("msg_", id_)},
          {"output_index", 0},
          {"content_index", 0},
          {name, std::move(value)}};
}

void ResponsesExchange::Append(TokenDelta delta, uint32_t /*sequence*/) {
  text_ += delta.text;
  for (const char c : delta.text) {
    escaped_ += static_cast<unsigned char>(c) < 0x20 ? 6 : c == '"' || c == '\\' ? 2 : 1;
  }
  if (request_.stream) waiting_ += delta.text;
}

bool ResponsesExchange::Take(std::string& /*state*/) {
  if (waiting_.empty()) return false;
  OrderedJson fields = InPart("delta", std::exchange(waiting_, ""));
  fields["logprobs"] = OrderedJson::array();
  outgoing_.clear_value();
  AddEvent("response.output_text.delta", fields);
  return true;
}

absl::string_view ResponsesExchange::too_much() const {
  return request_.stream ? Exchange::too_much()
                         : "the answer is larger than max_stream_buffer_bytes: ask for less "
                           "(max_output_tokens), or for a stream";
}

std::string ResponsesExchange::Note(const Outcome& outcome) const {
  return absl::StrCat(DumpJson(Json(outcome.stop_string)), "\n",
                      DumpJson(Response(&outcome, true)));
}

bool ResponsesExchange::Finish(const Outcome& outcome, const v1::State* stored) {
  const OrderedJson response = Response(&outcome, stored != nullptr);
  if (!request_.stream) {
    outgoing_.set_value(DumpJson(response));
    return true;
  }
  const OrderedJson& item = response["output"][0];
  OrderedJson text = InPart("text", text_);
  text["logprobs"] = OrderedJson::array();
  outgoing_.clear_value();
  AddEvent("response.output_text.done", text);
  AddEvent("response.content_part.done", InPart("part", item["content"][0]));
  AddEvent("response.output_item.done", {{"output_index", 0}, {"item", item}});
  const bool completed = response["status"] == "completed";
  AddEvent(completed ? "response.completed" : "response.incomplete", {{"response", response}});
  return true;
}

}  // namespace aft::server::openai
