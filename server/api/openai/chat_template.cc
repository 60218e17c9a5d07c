#include "server/api/openai/chat_template.h"

#include "absl/strings/str_cat.h"

namespace aft::server::openai {

std::string ChatTemplate::Render(const std::vector<ChatMessage>& messages) const {
  std::string text;
  for (const ChatMessage& message : messages) {
    const Frame& frame = message.role == "user"        ? user
                         : message.role == "assistant" ? assistant
                                                       : system;
    absl::StrAppend(&text, frame.prefix, message.text, frame.suffix);
  }
  return absl::StrCat(text, answer);
}

const ChatTemplate* FindChatTemplate(absl::string_view name) {
  // For models that have seen no conversations: texts, each a paragraph.
  static const ChatTemplate& plain =
      *new ChatTemplate{{"", "\n\n"}, {"", "\n\n"}, {"", "\n\n"}, "", {}};
  static const ChatTemplate& chatml = *new ChatTemplate{{"<|im_start|>system\n", "<|im_end|>\n"},
                                                        {"<|im_start|>user\n", "<|im_end|>\n"},
                                                        {"<|im_start|>assistant\n", "<|im_end|>\n"},
                                                        "<|im_start|>assistant\n",
                                                        {"<|im_end|>"}};
  static const ChatTemplate& rwkv = *new ChatTemplate{
      {"", "\n\n"}, {"User: ", "\n\n"}, {"Assistant: ", "\n\n"}, "Assistant:", {"\n\nUser:"}};
  if (name == "plain") return &plain;
  if (name == "chatml") return &chatml;
  if (name == "rwkv-world") return &rwkv;
  return nullptr;
}

}  // namespace aft::server::openai
