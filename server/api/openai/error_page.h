#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace aft::server::openai {

// An error in OpenAI's form, {"error": {"message", "type", "param", "code"}}, `param` being the
// field that the message begins with. INTERNAL shows the request's id and nothing else. `path`: of
// the text that has failed, in front of the message.
std::string ErrorText(const absl::Status& status, absl::string_view request_id,
                      absl::string_view path = "");

// What a body is reported as that the server of HTTP has refused with that status
// (HttpTask::Refused).
absl::Status BodyError(int http);

// The same as an answer with the status code that says it. `retry_after`: when a retry may find
// room; `Retry-After` says so in whole seconds, `retry-after-ms` exactly.
HttpPage ErrorPage(const absl::Status& status, absl::string_view request_id,
                   std::optional<std::chrono::milliseconds> retry_after = std::nullopt,
                   absl::string_view path = "");

}  // namespace aft::server::openai
