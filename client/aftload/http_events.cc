#include "client/aftload/http_events.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json.h"

namespace aft::client {
namespace {

using Json = nlohmann::json;

struct HttpError {
  int http;
  const char* name;  // the `code` of an error within a stream
  absl::StatusCode code;
};
constexpr std::array<HttpError, 10> kHttpErrors = {
    {{400, "invalid_value", absl::StatusCode::kInvalidArgument},
     {400, "unsupported", absl::StatusCode::kFailedPrecondition},
     {401, "invalid_api_key", absl::StatusCode::kUnauthenticated},
     {403, "permission_denied", absl::StatusCode::kPermissionDenied},
     {404, "model_not_found", absl::StatusCode::kNotFound},
     {429, "rate_limit_exceeded", absl::StatusCode::kResourceExhausted},
     {499, "cancelled", absl::StatusCode::kCancelled},
     {500, "internal_error", absl::StatusCode::kInternal},
     {503, "unavailable", absl::StatusCode::kUnavailable},
     {504, "deadline_exceeded", absl::StatusCode::kDeadlineExceeded}}};

// Returns the member of an object, or null for everything else.
const Json& Member(const Json& json, const char* name) {
  static const auto* const none = new Json;
  const auto found = json.is_object() ? json.find(name) : json.end();
  return found == json.end() ? *none : *found;
}

std::string Text(const Json& json) { return json.is_string() ? json.get<std::string>() : ""; }

uint32_t Count(const Json& json) { return json.is_number_unsigned() ? json.get<uint32_t>() : 0; }

// The `code` of the error is more precise than the status `http`, which is 0 within a stream.
absl::Status StatusOf(int http, const Json& error) {
  const std::string name = Text(Member(error, "code"));
  const auto find = [](auto is) {
    return std::find_if(kHttpErrors.begin(), kHttpErrors.end(), is);
  };
  const auto* found =
      find([&](const HttpError& known) { return !name.empty() && name == known.name; });
  if (found == kHttpErrors.end()) {
    found = find([&](const HttpError& known) { return http == known.http; });
  }
  std::string message = Text(Member(error, "message"));
  if (message.empty()) message = absl::StrCat("HTTP status ", http);
  return {found == kHttpErrors.end() ? absl::StatusCode::kUnknown : found->code, message};
}

// Returns the text of an event that carries no more than some text; "" if the event has to be
// parsed. Parsing each token's event into objects would cost the client more than the server spends
// on the token. A quote within a JSON string has a backslash, so the keys found here are keys.
absl::string_view PlainText(absl::string_view data) {
  constexpr absl::string_view kChoice = "\"choices\":[{\"index\":0,\"text\":\"";
  const size_t choice = data.find(kChoice);
  if (choice == absl::string_view::npos) return "";
  const absl::string_view rest = data.substr(choice + kChoice.size());
  const absl::string_view text = rest.substr(0, rest.find('"'));
  constexpr auto kNone = absl::string_view::npos;
  const bool plain = text.find('\\') == kNone && data.front() == '{' && data.back() == '}' &&
                     rest.find("\"error\"") == kNone && rest.find("\"usage\":{") == kNone;
  return plain ? text : "";
}

}  // namespace

std::string CompletionBody(const v1::GenerateRequest& request) {
  Json body = {{"prompt", request.has_raw() ? request.raw() : request.text()},
               {"max_tokens", request.stop().max_tokens()},
               {"ignore_eos", request.stop().ignore_eos()},
               {"seed", request.sampling().seed()},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (!request.model().empty()) body["model"] = request.model();
  return DumpJson(body);
}

absl::Status HttpStatus(int code, absl::string_view body, const ErrorDetails& details) {
  Json json;
  ParseJson(body, json);
  absl::Status status = StatusOf(code, Member(json, "error"));
  SetErrorDetails(details, status);
  return status;
}

void EventReader::Feed(absl::string_view bytes, const Take& take) {
  for (size_t end = 0; (end = bytes.find('\n')) != absl::string_view::npos;) {
    absl::string_view line = bytes.substr(0, end);
    if (!line_.empty()) {
      absl::StrAppend(&line_, line);
      line = line_;
    }
    OnLine(absl::StripSuffix(line, "\r"), take);
    line_.clear();
    bytes.remove_prefix(end + 1);
  }
  absl::StrAppend(&line_, bytes);
}

void EventReader::OnLine(absl::string_view line, const Take& take) {
  if (line.empty()) {
    if (!data_.empty()) OnData(data_, take);
    data_.clear();
  } else if (absl::ConsumePrefix(&line, "data:")) {
    absl::ConsumePrefix(&line, " ");
    absl::StrAppend(&data_, data_.empty() ? "" : "\n", line);
  }
}

void EventReader::OnData(absl::string_view data, const Take& take) {
  if (!status_.ok()) return;
  done_ |= data == "[DONE]";
  if (done_) return;
  if (const absl::string_view text = PlainText(data); !text.empty()) return OnText(text, take);
  Json event;
  ParseJson(data, event);  // null if it is no JSON, and so in HttpStatus
  if (!event.is_object()) status_ = absl::DataLossError("an event is no JSON object");
  if (event.contains("error")) {
    status_ = StatusOf(0, event["error"]);
    SetErrorDetails({.received_tokens = texts_}, status_);
  }
  const Json& choices = Member(event, "choices");
  if (choices.is_array() && !choices.empty()) {
    if (const std::string text = Text(Member(choices[0], "text")); !text.empty()) {
      OnText(text, take);
    }
  }
  if (const Json& usage = Member(event, "usage"); usage.is_object()) {
    counted_ = true;
    v1::GenerateResponse response;
    v1::Usage& counts = *response.mutable_finished()->mutable_usage();
    counts.set_prompt_tokens(Count(Member(usage, "prompt_tokens")));
    counts.set_generated_tokens(Count(Member(usage, "completion_tokens")));
    take(response);
  }
}

void EventReader::OnText(absl::string_view text, const Take& take) {
  ++texts_;
  delta_.mutable_delta()->mutable_text()->assign(text.data(), text.size());
  take(delta_);
}

absl::Status EventReader::End() const {
  if (!status_.ok() || (done_ && counted_)) return status_;
  return absl::DataLossError(done_ ? "the stream has no usage" : "the stream has no [DONE]");
}

}  // namespace aft::client
