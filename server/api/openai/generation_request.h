#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "server/api/aft/named_options.h"
#include "server/api/openai/conversation.h"
#include "server/api/openai/json_text.h"

namespace aft::server::openai {

using Texts = google::protobuf::RepeatedPtrField<v1::Text>;

// The endpoints that generate: /v1/completions, /v1/chat/completions, /v1/responses.
enum class Endpoint { kCompletions, kChat, kResponses };

// The parsed body of a request to one of these endpoints. The fields are OpenAI's; for sampling,
// they are also vLLM's (the names of the Open Inference Protocol). A field that is not supported is
// refused unless its value asks for nothing.
struct GenerationBody {
  std::string model;
  absl::StatusOr<std::string> user;  // an error if it is not a string
  bool stream = false;
  bool usage = false;         // stream_options.include_usage
  bool logprobs = false;      // the client wants them
  bool token_ids = false;     // the client wants them
  GenerationOptions options;  // options.message() has everything but the text
  // The names that the request has for options. The key is the name that an error of
  // GenerationOptions begins with or, if GenerationOptions does not know the option, the field of
  // GenerateRequest.
  std::map<std::string, std::string> own_names;
  Texts prompts;                      // only in /v1/completions
  bool list = false;                  // the prompts came as a list
  std::vector<ChatMessage> messages;  // not in /v1/completions
  // Only requests to /v1/responses have these:
  std::string instructions;
  std::string previous;       // previous_response_id
  std::optional<bool> store;  // unset: store if there is room
  Json metadata = Json::object();
};

// The message of INVALID_ARGUMENT begins with the field.
absl::StatusOr<GenerationBody> ParseGeneration(absl::string_view text, Endpoint endpoint);

// ---- Functions that other endpoints use too.

// Returns the member `name` as a string; "" if it is missing or null.
absl::StatusOr<std::string> StringField(const Json& object, const char* name);
// Fills a text of a request: a string, or a list of token ids.
absl::Status SetText(const std::string& name, const Json& value, v1::Text& message);
// Fills the texts of a request: one, or a list of them. Returns whether it is a list.
absl::StatusOr<bool> SetTexts(const std::string& name, const Json& value, Texts& texts);
// Rewords an error about a field of GenerateRequest, so that it names the body's field. Marks an
// error about the number of tokens of a text (AsContextLength), which names the field already.
absl::Status InOwnNames(const GenerationBody& body, const absl::Status& error);
// Rewords a codec's error about a text, so that it has `name` instead of the protobuf field's name.
absl::Status RenameText(const absl::Status& error, absl::string_view name);

}  // namespace aft::server::openai
