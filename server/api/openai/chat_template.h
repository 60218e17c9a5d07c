#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/config/config.h"

namespace aft::server::openai {

struct ChatMessage {
  std::string role;  // "system", "developer", "user", "assistant"
  std::string text;
};

// The format of a model's conversations. REQUIRES: the config is valid.
ChatFormat FormatOf(const ModelConfig& model);

// The prompt of a language model, which continues the conversation.
std::string Render(const ChatFormat& format, const std::vector<ChatMessage>& messages);
// The same behind a text that ends with the model's answer, and with `ended_by`, the stop string
// that ended it if one did.
std::string Continue(const ChatFormat& format, absl::string_view ended_by,
                     const std::vector<ChatMessage>& messages);

}  // namespace aft::server::openai
