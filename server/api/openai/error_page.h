#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/api/openai/json_text.h"
#include "server/http/http_message.h"

namespace aft::server::openai {

// Returns an error in OpenAI's form, {"message", "type", "param", "code"}. `param` is the field
// that the message begins with, or "model" for an unknown model. For INTERNAL, the message contains
// only the request's id. `path`: the path of the text that has failed, which is put in front of the
// message.
OrderedJson ErrorOf(const absl::Status& status, absl::string_view request_id,
                    absl::string_view path = "");

// Marks an error about the number of tokens of a prompt: its `code` is "context_length_exceeded".
absl::Status AsContextLength(absl::Status error);

// Returns {"error": ErrorOf} as text.
std::string ErrorText(const absl::Status& status, absl::string_view request_id,
                      absl::string_view path = "");

// Returns the error to report when the HTTP server has refused a head or a body (`part`: "head" or
// "body") with the status `http` (HttpHandler::HeadRefused, HttpTask::Refused).
absl::Status PartError(absl::string_view part, int http);

// Returns it as an answer. The server sends it with the status `http`.
HttpPage PartErrorPage(absl::string_view part, int http, absl::string_view request_id);

// Returns ErrorText as an answer with the HTTP status of the error. `retry_after`: when a retry may
// succeed. The header `Retry-After` has it in whole seconds, `retry-after-ms` exactly.
HttpPage ErrorPage(const absl::Status& status, absl::string_view request_id,
                   std::optional<std::chrono::milliseconds> retry_after = std::nullopt,
                   absl::string_view path = "");

}  // namespace aft::server::openai
