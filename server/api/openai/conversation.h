#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/registry/chat_template.h"

namespace aft::server::openai {

struct ChatMessage {
  std::string role;  // "system", "developer", "user", "assistant"
  std::string text;
};

// Returns the conversation as the prompt that the language model continues.
std::string Render(const ChatTemplate& format, const std::vector<ChatMessage>& messages);
// Returns what the model reads after a text that ends with its own last answer. `ended_by`: the
// stop string that ended that answer, which the model has read already; empty if none did. It is
// left out where the result would begin with it.
std::string Continue(const ChatTemplate& format, absl::string_view ended_by,
                     const std::vector<ChatMessage>& messages);

}  // namespace aft::server::openai
