#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "server/api/aft/named_options.h"
#include "server/api/openai/chat_template.h"
#include "server/api/openai/json_text.h"

namespace aft::server::openai {

using Texts = google::protobuf::RepeatedPtrField<v1::Text>;

// What generates: /v1/completions, /v1/chat/completions, /v1/responses.
enum class Endpoint { kCompletions, kChat, kResponses };

// A body of one of them. Its fields are those of OpenAI and, of sampling, those of vLLM (the names
// of the Open Inference Protocol). A field that is not supported is refused, unless it asks for
// nothing.
struct GenerationBody {
  std::string model;
  absl::StatusOr<std::string> user;  // an error: it is no string
  bool stream = false;
  bool usage = false;                 // stream_options.include_usage
  bool logprobs = false;              // are wanted
  bool token_ids = false;             // are wanted
  GenerationOptions options;          // options.message() has all but the text
  std::string max_tokens;             // what the request calls stop.max_tokens
  Texts prompts;                      // of completions
  bool list = false;                  // they came as a list
  std::vector<ChatMessage> messages;  // of a conversation
  // Of responses.
  std::string instructions;
  std::string previous;       // previous_response_id
  std::optional<bool> store;  // unset: if there is room
  Json metadata = Json::object();
};

// INVALID_ARGUMENT begins with the field.
absl::StatusOr<GenerationBody> ParseGeneration(absl::string_view text, Endpoint endpoint);

// What other endpoints share.

// The member of that name as a string; "" where there is none, or null.
absl::StatusOr<std::string> StringField(const Json& object, const char* name);
// Fills a text of a request: a string, or a list of token ids.
absl::Status SetText(const std::string& name, const Json& value, v1::Text& message);
// Fills the texts of a request: one, or a list of them. Returns whether it is a list.
absl::StatusOr<bool> SetTexts(const std::string& name, const Json& value, Texts& texts);
// The same error in terms of the body's fields, of one in terms of a GenerateRequest.
absl::Status InOwnNames(const GenerationBody& body, const absl::Status& error);
// Names the text `name` in the error of a codec, which calls it by its field in a message.
absl::Status RenameText(const absl::Status& error, absl::string_view name);

}  // namespace aft::server::openai
