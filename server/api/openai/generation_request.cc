#include "server/api/openai/generation_request.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/api/openai/error_page.h"
#include "server/config/checks.h"

namespace aft::server::openai {
namespace {

// Fields of OpenAI's API and of vLLM that a request may have only with a value that asks for
// nothing.
constexpr const char* kUnsupported[] = {"add_generation_prompt",
                                        "add_special_tokens",
                                        "audio",
                                        "background",
                                        "best_of",
                                        "continue_final_message",
                                        "conversation",
                                        "echo",
                                        "function_call",
                                        "functions",
                                        "include",
                                        "length_penalty",
                                        "max_tool_calls",
                                        "metadata",
                                        "modalities",
                                        "prediction",
                                        "reasoning",
                                        "parallel_tool_calls",
                                        "response_format",
                                        "return_tokens_as_token_ids",
                                        "skip_special_tokens",
                                        "spaces_between_special_tokens",
                                        "store",
                                        "suffix",
                                        "tool_choice",
                                        "tools",
                                        "truncation",
                                        "reasoning_effort",
                                        "use_beam_search",
                                        "verbosity",
                                        "web_search_options"};
// Fields that are accepted and ignored.
constexpr const char* kIgnored[] = {"safety_identifier", "prompt_cache_key"};

// The field that has the text, and the path of each endpoint, in the order of Endpoint.
constexpr std::array<const char*, 3> kText = {"prompt", "messages", "input"};
constexpr std::array<const char*, 3> kPaths = {"/v1/completions", "/v1/chat/completions",
                                               "/v1/responses"};
// The other fields of each endpoint that are not options of GenerationOptions.
constexpr std::array<const char*, 3> kOwnFields = {
    "prompt model user stream stream_options priority service_tier max_completion_tokens echo "
    "return_token_ids",
    "messages model user stream stream_options priority service_tier max_completion_tokens "
    "top_logprobs return_token_ids",
    "input model user stream stream_options priority service_tier instructions "
    "previous_response_id store metadata max_output_tokens text"};

template <typename Names>
bool IsOneOf(const Names& names, const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Whether all members of the object are null, except perhaps `name` with the value `plain`.
bool HasOnly(const Json& object, const char* name, const Json& plain) {
  if (!object.is_object()) return false;
  for (const auto& [key, member] : object.items()) {
    if (!member.is_null() && (key != name || member != plain)) return false;
  }
  return true;
}

bool AsksForNothing(const std::string& name, const Json& value) {
  // vLLM's defaults: the texts of special tokens are never sent, and the prompt of a chat ends
  // where the answer begins.
  if (name == "skip_special_tokens" || name == "add_generation_prompt") {
    return value.is_null() || value == Json(true);
  }
  if (value.is_null() || value == Json(false) || value == Json("")) return true;
  if (value.is_structured() && value.empty()) return true;
  if (name == "tool_choice" || name == "function_call") return value == "none" || value == "auto";
  if (name == "response_format") return value == Json{{"type", "text"}};
  if (name == "truncation") return value == "disabled";
  if (name == "reasoning") return HasOnly(value, "effort", "none");
  if (name == "modalities") return value == Json::array({"text"});
  // No text has special tokens, neither a prompt nor an answer.
  if (name == "add_special_tokens" || name == "spaces_between_special_tokens" ||
      name == "parallel_tool_calls") {
    return value.is_boolean();
  }
  if (name == "best_of" || name == "length_penalty") return value == 1;
  if (name == "reasoning_effort") return value == "none";
  return name == "metadata" && value.is_object();
}

absl::Status ReadFlag(const std::string& name, const Json& value, bool& flag) {
  if (value.is_null()) return absl::OkStatus();
  if (!value.is_boolean()) return BadField(name, "must be true or false");
  flag = value.get<bool>();
  return absl::OkStatus();
}

absl::Status ReadStreamOptions(const Json& value, GenerationBody& body) {
  if (value.is_null()) return absl::OkStatus();
  if (!value.is_object()) return BadField("stream_options", "must be an object");
  for (const auto& [name, option] : value.items()) {
    const std::string path = absl::StrCat("stream_options.", name);
    bool unused = false;
    if (name != "include_usage" && name != "include_obfuscation" &&
        name != "continuous_usage_stats") {
      return BadField(path, "there is no such option");
    }
    AFT_RETURN_IF_ERROR(ReadFlag(path, option, name == "include_usage" ? body.usage : unused));
  }
  return absl::OkStatus();
}

// Reads OpenAI's `service_tier` or vLLM's `priority`, whose lower numbers are served sooner.
absl::Status ReadPriority(const std::string& name, const Json& value, GenerationBody& body) {
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;
  if (name == "priority" && value.is_number_integer()) {
    const bool negative = !value.is_number_unsigned() && value.get<int64_t>() < 0;
    if (value != 0) priority = negative ? v1::PRIORITY_INTERACTIVE : v1::PRIORITY_BATCH;
  } else if (name == "service_tier" && (value == "flex" || value == "priority")) {
    priority = value == "flex" ? v1::PRIORITY_BATCH : v1::PRIORITY_INTERACTIVE;
  } else if (!value.is_null() && (name == "priority" || (value != "auto" && value != "default"))) {
    return BadField(name, name == "priority" ? "must be an integer"
                                             : "must be auto, default, flex or priority");
  }
  if (priority != v1::PRIORITY_UNSPECIFIED) body.options.message().set_priority(priority);
  return absl::OkStatus();
}

// Reads a message's content, which is a string or a list of text parts.
absl::StatusOr<std::string> ReadContent(const std::string& path, const Json& message) {
  constexpr std::array<const char*, 3> kTexts = {"text", "input_text", "output_text"};
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return BadField(path, "must be a string");
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return BadField(path, "must be a string, or a list of texts");
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& part = (*content)[i];
    // Json::value would copy what the client has put there.
    const auto type = part.is_object() ? part.find("type") : part.end();
    const bool is_text = type != part.end() && type->is_string() &&
                         IsOneOf(kTexts, type->get_ref<const std::string&>()) &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) {
      return BadField(absl::StrCat(path, "[", i, "]"),
                      "must be {\"type\": \"text\", \"text\": ...}");
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

absl::Status ReadMessages(const std::string& field, const Json& value, GenerationBody& body) {
  if (!value.is_array() || value.empty()) {
    return BadField(field, "must be a list of one message or more");
  }
  constexpr std::array<const char*, 4> kRoles = {"system", "developer", "user", "assistant"};
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string path = absl::StrCat(field, "[", i, "]");
    const Json& message = value[i];
    if (!message.is_object()) return BadField(path, "must be an object");
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string() ||
        !IsOneOf(kRoles, role->get_ref<const std::string&>())) {
      return BadField(absl::StrCat(path, ".role"), "must be system, developer, user or assistant");
    }
    for (const auto& [name, member] : message.items()) {
      const bool known = name == "role" || name == "content" || name == "name" || name == "id" ||
                         name == "status" || (name == "type" && member == "message") ||
                         (name == "type" && field == "messages" && member == "text");
      if (!known && !AsksForNothing(name, member)) {
        return BadField(absl::StrCat(path, ".", name), "is not supported");
      }
    }
    AFT_ASSIGN_OR_RETURN(std::string text, ReadContent(absl::StrCat(path, ".content"), message));
    body.messages.push_back({role->get<std::string>(), std::move(text)});
  }
  return absl::OkStatus();
}

// Reads an option that the endpoint may call by several names. Only `max_tokens` has more than one
// in the same endpoint. Some clients send both.
absl::Status ReadOption(const std::string& option, const std::string& name, const Json& value,
                        GenerationBody& body) {
  if (value.is_null()) return absl::OkStatus();
  const auto [own, added] = body.own_names.emplace(option, name);
  if (!added) {
    return value == body.options.message().stop().max_tokens()
               ? absl::OkStatus()
               : BadField(name, absl::StrCat("is given as ", own->second, " too"));
  }
  return InOwnNames(body, body.options.Set("", option, value));
}

// Reads the input of a response: a text of the user, or a list of messages.
absl::Status ReadInput(const Json& value, GenerationBody& body) {
  if (!value.is_string()) return ReadMessages("input", value, body);
  body.messages.push_back({"user", value.get<std::string>()});
  return absl::OkStatus();
}

// The response repeats the metadata and is stored with it, so the limits are the same as OpenAI's.
absl::Status ReadMetadata(const Json& value, GenerationBody& body) {
  if (value.is_null()) return absl::OkStatus();
  bool good = value.is_object() && value.size() <= 16;
  for (auto member = value.begin(); good && member != value.end(); ++member) {
    good = member.key().size() <= 64 && member->is_string() &&
           member->get_ref<const std::string&>().size() <= 512;
  }
  if (!good) {
    return BadField("metadata",
                    "must be an object of at most 16 strings, each of at most 512 bytes, with keys "
                    "of at most 64");
  }
  body.metadata = value;
  return absl::OkStatus();
}

// Reads a field that only /v1/responses has. Returns false if `name` is not such a field.
absl::StatusOr<bool> ReadOfResponses(const std::string& name, const Json& value,
                                     GenerationBody& body) {
  if (name == "input") {
    AFT_RETURN_IF_ERROR(ReadInput(value, body));
  } else if (name == "store") {
    if (!value.is_null()) AFT_RETURN_IF_ERROR(ReadFlag(name, value, body.store.emplace()));
  } else if (name == "metadata") {
    AFT_RETURN_IF_ERROR(ReadMetadata(value, body));
  } else if (name == "max_output_tokens") {
    AFT_RETURN_IF_ERROR(ReadOption("max_tokens", name, value, body));
  } else if (name == "text") {
    const bool plain =
        AsksForNothing(name, value) || HasOnly(value, "format", Json{{"type", "text"}});
    if (!plain) return BadField(name, "supports only {\"format\": {\"type\": \"text\"}}");
  } else if (name == "n" || name == "top_logprobs" || name == "logprobs") {
    if (!value.is_null() && value != 0 && value != Json(false) && !(name == "n" && value == 1)) {
      return BadField(name, "is not supported");
    }
  } else {
    return false;
  }
  return true;
}

// Chat has a flag `logprobs` and a number `top_logprobs`; completions have a number `logprobs`.
absl::Status ReadLogprobs(const std::string& name, const Json& value, bool chat,
                          GenerationBody& body) {
  if (value.is_null()) return absl::OkStatus();
  if (chat && name == "logprobs") {
    AFT_RETURN_IF_ERROR(ReadFlag(name, value, body.logprobs));
    if (body.logprobs && !body.options.message().output().has_top_logprobs()) {
      body.options.message().mutable_output()->set_top_logprobs(0);
    }
    return absl::OkStatus();
  }
  body.logprobs = body.logprobs || !chat;
  return ReadOption("logprobs", name, value, body);
}

absl::Status ReadField(const std::string& name, const Json& value, Endpoint endpoint,
                       GenerationBody& body) {
  const bool chat = endpoint == Endpoint::kChat;
  const bool completions = endpoint == Endpoint::kCompletions;
  // ParseGeneration has read these fields, and the two of responses below.
  if (name == "model" || name == "user") return absl::OkStatus();
  if (endpoint == Endpoint::kResponses) {
    if (name == "instructions" || name == "previous_response_id") return absl::OkStatus();
    AFT_ASSIGN_OR_RETURN(const bool read, ReadOfResponses(name, value, body));
    if (read) return absl::OkStatus();
  }
  if (name == "messages" && chat) return ReadMessages(name, value, body);
  if (name == "prompt" && completions) {
    AFT_ASSIGN_OR_RETURN(body.list, SetTexts(name, value, body.prompts));
    return absl::OkStatus();
  }
  if (name == "stream") return ReadFlag(name, value, body.stream);
  if (name == "return_token_ids" && endpoint != Endpoint::kResponses) {
    return ReadFlag(name, value, body.token_ids);
  }
  if (name == "stream_options") return ReadStreamOptions(value, body);
  if (name == "logprobs" || (name == "top_logprobs" && chat)) {
    return ReadLogprobs(name, value, chat, body);
  }
  if (name == "echo" && completions) {
    bool echo = false;
    AFT_RETURN_IF_ERROR(ReadFlag(name, value, echo));
    if (echo) body.options.message().mutable_output()->set_echo(true);
    body.own_names.emplace("output.echo", name);
    return absl::OkStatus();
  }
  if (name == "n") {
    if (value.is_null()) return absl::OkStatus();
    if (!value.is_number_unsigned()) return BadField(name, "must be an integer of at least 1");
    body.options.message().set_n(
        static_cast<uint32_t>(std::min<uint64_t>(value.get<uint64_t>(), UINT32_MAX)));
    return absl::OkStatus();
  }
  if (name == "priority" || name == "service_tier") return ReadPriority(name, value, body);
  if (name == "max_tokens" ||
      (name == "max_completion_tokens" && endpoint != Endpoint::kResponses)) {
    return ReadOption("max_tokens", name, value, body);
  }
  if (name == "seed" && !value.is_null()) {  // OpenAI's seeds may be negative
    if (!value.is_number_integer()) return BadField(name, "must be an integer of at most 64 bits");
    return body.options.Set("", name, value.get<uint64_t>());
  }
  if (IsOneOf(kIgnored, name)) return absl::OkStatus();
  if (IsOneOf(kUnsupported, name)) {
    return AsksForNothing(name, value) ? absl::OkStatus() : BadField(name, "is not supported");
  }
  const auto* const text = std::find(kText.begin(), kText.end(), name);
  if (text != kText.end() && !value.is_null()) {  // of another endpoint
    return BadField(name, absl::StrCat("there is no such option; it is a field of ",
                                       kPaths[static_cast<size_t>(text - kText.begin())]));
  }
  return body.options.Set("", name, value);
}

// Whether the error is about the number of tokens of a text, such as "prompt[1]: 30 tokens exceed".
// No other reason to refuse a text has this word.
bool IsAboutLength(const absl::Status& error) {
  const absl::string_view message = error.message();
  const size_t end = message.find(": ");
  return absl::IsInvalidArgument(error) && end != absl::string_view::npos &&
         IsOneOf(kText, std::string(message.substr(0, std::min(end, message.find('['))))) &&
         absl::StrContains(message.substr(end), " tokens");
}

}  // namespace

absl::StatusOr<std::string> StringField(const Json& object, const char* name) {
  const auto value = object.find(name);
  if (value == object.end() || value->is_null()) return "";
  if (!value->is_string()) return BadField(name, "must be a string");
  return value->get<std::string>();
}

absl::Status SetText(const std::string& name, const Json& value, v1::Text& message) {
  if (value.is_string()) {
    message.set_text(value.get<std::string>());
    return absl::OkStatus();
  }
  if (!value.is_array()) return BadField(name, "must be a string, or a list of token ids");
  auto& ids = *message.mutable_tokens()->mutable_ids();
  ids.Reserve(static_cast<int>(value.size()));
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_number_unsigned() || value[i].get<uint64_t>() > UINT32_MAX) {
      return BadField(absl::StrCat(name, "[", i, "]"), "must be a token id");
    }
    ids.Add(value[i].get<uint32_t>());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SetTexts(const std::string& name, const Json& value, Texts& texts) {
  // The largest value that limits.max_texts may have. The bound is checked early, because an entry
  // of three bytes of JSON becomes many times larger as a message.
  constexpr size_t kMost = 400;
  if (!value.is_array() || value.empty() || value[0].is_number()) {
    AFT_RETURN_IF_ERROR(SetText(name, value, *texts.Add()));
    return false;
  }
  if (value.size() > kMost) {
    return BadField(name,
                    absl::StrCat("must have at most ", kMost, " entries, got ", value.size()));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    AFT_RETURN_IF_ERROR(SetText(absl::StrCat(name, "[", i, "]"), value[i], *texts.Add()));
  }
  return true;
}

absl::Status InOwnNames(const GenerationBody& body, const absl::Status& error) {
  absl::Status renamed = body.options.Rename(error);
  const absl::string_view message = renamed.message();
  if (IsAboutLength(renamed)) return AsContextLength(std::move(renamed));
  const auto own = body.own_names.find(std::string(message.substr(0, message.find(':'))));
  if (own == body.own_names.end()) return renamed;
  return absl::Status(renamed.code(), absl::StrCat(own->second, message.substr(own->first.size())));
}

absl::Status RenameText(const absl::Status& error, absl::string_view name) {
  const absl::string_view text = error.message();
  for (const absl::string_view field : {"text", "tokens.ids", "tokens", "token_ids"}) {
    if (text.substr(0, field.size()) != field || text.size() == field.size()) continue;
    if (text[field.size()] != ':' && text[field.size()] != '[') continue;
    return absl::Status(error.code(), absl::StrCat(name, text.substr(field.size())));
  }
  return error;
}

absl::StatusOr<GenerationBody> ParseGeneration(absl::string_view text, Endpoint endpoint) {
  AFT_ASSIGN_OR_RETURN(const JsonPtr parsed, ParseObject(text));
  const Json& object = *parsed;
  GenerationBody body;
  body.options = GenerationOptions(/*lax=*/false, kOwnFields[static_cast<size_t>(endpoint)]);
  AFT_ASSIGN_OR_RETURN(body.model, StringField(object, "model"));
  body.user = StringField(object, "user");
  if (endpoint == Endpoint::kResponses) {
    AFT_ASSIGN_OR_RETURN(body.instructions, StringField(object, "instructions"));
    AFT_ASSIGN_OR_RETURN(body.previous, StringField(object, "previous_response_id"));
  }
  const auto n = object.find("n");
  for (const auto& [name, value] : object.items()) {
    // With best_of = n, none of the texts is left out.
    if (name == "best_of" && n != object.end() && value == *n) continue;
    AFT_RETURN_IF_ERROR(ReadField(name, value, endpoint, body));
  }
  const char* const needed = kText[static_cast<size_t>(endpoint)];
  if (!object.contains(needed)) return BadField(needed, "is missing");
  const bool chat = endpoint == Endpoint::kChat;
  if (body.usage && !body.stream) return BadField("stream_options", "needs stream");
  const v1::OutputOptions& output = body.options.message().output();
  if (chat && !body.logprobs) {
    if (output.top_logprobs() > 0) return BadField("top_logprobs", "needs logprobs");
    body.options.message().mutable_output()->clear_top_logprobs();
  }
  // OpenAI's echo has the log-probabilities of all that it repeats.
  if (output.echo() && body.logprobs) {
    body.options.message().set_prompt_logprobs(true);
  } else if (const v1::StopOptions& stop = body.options.message().stop();
             endpoint == Endpoint::kCompletions && stop.has_max_tokens() &&
             stop.max_tokens() == 0) {
    return BadField("max_tokens", "must be at least 1, got 0; 0 needs echo and logprobs");
  }
  return body;
}

}  // namespace aft::server::openai
