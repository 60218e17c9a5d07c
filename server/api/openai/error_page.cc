#include "server/api/openai/error_page.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "server/api/openai/json_text.h"

namespace aft::server::openai {
namespace {

using absl::StatusCode;

struct Form {
  StatusCode code;
  int http;
  const char* type;
  const char* name;  // the error's `code`
};
constexpr Form kForms[] = {
    {StatusCode::kInvalidArgument, 400, "invalid_request_error", "invalid_value"},
    {StatusCode::kFailedPrecondition, 400, "invalid_request_error", "unsupported"},
    {StatusCode::kUnauthenticated, 401, "authentication_error", "invalid_api_key"},
    {StatusCode::kPermissionDenied, 403, "permission_error", "permission_denied"},
    {StatusCode::kNotFound, 404, "invalid_request_error", "model_not_found"},
    {StatusCode::kResourceExhausted, 429, "rate_limit_error", "rate_limit_exceeded"},
    {StatusCode::kUnavailable, 503, "server_error", "unavailable"},
    {StatusCode::kDeadlineExceeded, 504, "server_error", "deadline_exceeded"},
    {StatusCode::kInternal, 500, "server_error", "internal_error"}};

const Form& FormOf(StatusCode code) {
  const auto* const found = std::find_if(std::begin(kForms), std::end(kForms),
                                         [code](const Form& form) { return form.code == code; });
  return found != std::end(kForms) ? *found : *std::prev(std::end(kForms));
}

// The field in front of the colon, if the message begins with one.
std::string FieldOf(absl::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == absl::string_view::npos || colon == 0) return "";
  const absl::string_view field = message.substr(0, colon);
  const bool is_path = std::all_of(field.begin(), field.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '[' ||
           c == ']' || c == '-';
  });
  return is_path ? std::string(field) : "";
}

// The payload of the errors that AsContextLength has marked.
constexpr char kContextLength[] = "aft/context_length";

// Returns the error's `code`. For NOT_FOUND it says what was not found.
const char* CodeOf(const absl::Status& status, const Form& form, const std::string& field,
                   absl::string_view message) {
  if (status.GetPayload(kContextLength).has_value()) return "context_length_exceeded";
  if (form.code != StatusCode::kNotFound) return form.name;
  if (field == "previous_response_id") return "previous_response_not_found";
  return field == "model" || absl::StartsWith(message, "no model") ? form.name : "not_found";
}

}  // namespace

OrderedJson ErrorOf(const absl::Status& status, absl::string_view request_id,
                    absl::string_view path) {
  const Form& form = FormOf(status.code());
  const bool internal = form.code == StatusCode::kInternal;
  std::string message = internal ? absl::StrCat("internal error; request id ", request_id)
                                 : std::string(status.message());
  if (!path.empty()) message = absl::StrCat(path, ": ", message);
  std::string field = form.http == 400 || form.http == 404 ? FieldOf(message) : "";
  const char* const code = CodeOf(status, form, field, message);
  if (field.empty() && absl::string_view(code) == "model_not_found") field = "model";
  OrderedJson error = {{"message", message}, {"type", form.type}};
  error["param"] = field.empty() ? OrderedJson() : OrderedJson(field);
  error["code"] = code;
  return error;
}

absl::Status AsContextLength(absl::Status error) {
  error.SetPayload(kContextLength, absl::Cord());
  return error;
}

std::string ErrorText(const absl::Status& status, absl::string_view request_id,
                      absl::string_view path) {
  return DumpJson(OrderedJson{{"error", ErrorOf(status, request_id, path)}});
}

absl::Status PartError(absl::string_view part, int http) {
  if (http == 408)
    return absl::DeadlineExceededError(absl::StrCat("the ", part, " came too slowly"));
  if (http == 413) {
    return absl::ResourceExhaustedError("the body is larger than limits.max_message_bytes");
  }
  if (http == 431) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the ", part == "head" ? part : "trailer of the body", " is too large"));
  }
  return absl::InvalidArgumentError(absl::StrCat("the ", part, " is not valid HTTP"));
}

HttpPage PartErrorPage(absl::string_view part, int http, absl::string_view request_id) {
  return ErrorPage(absl::InvalidArgumentError(PartError(part, http).message()), request_id);
}

HttpPage ErrorPage(const absl::Status& status, absl::string_view request_id,
                   std::optional<std::chrono::milliseconds> retry_after, absl::string_view path) {
  HttpPage page = {.status = FormOf(status.code()).http,
                   .content_type = "application/json",
                   .body = ErrorText(status, request_id, path)};
  if (page.status == 401) page.headers["WWW-Authenticate"] = "Bearer";
  if (page.status == 503 && !retry_after.has_value()) retry_after = std::chrono::seconds(1);
  if (retry_after.has_value()) {
    page.headers["Retry-After"] = absl::StrCat((retry_after->count() + 999) / 1000);
    page.headers["retry-after-ms"] = absl::StrCat(retry_after->count());
  } else if (page.status == 429 || page.status == 504) {
    page.headers["x-should-retry"] = "false";  // a retry would fail in the same way
  }
  return page;
}

}  // namespace aft::server::openai
