#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft::server::openai {

struct ChatMessage {
  std::string role;  // "system", "developer", "user", "assistant"
  std::string text;
};

// How a conversation becomes the prompt of a language model, which continues it.
struct ChatTemplate {
  // In front of the messages of a role, and behind them.
  struct Frame {
    std::string prefix, suffix;
  };
  Frame system, user, assistant;
  std::string answer;  // behind all messages: the answer begins here
  std::vector<std::string> stop;

  std::string Render(const std::vector<ChatMessage>& messages) const;
};

// "plain", "chatml", "rwkv-world"; null: there is none of that name.
const ChatTemplate* FindChatTemplate(absl::string_view name);

}  // namespace aft::server::openai
