#include "server/api/openai/chat_template.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace aft::server::openai {

ChatFormat FormatOf(const ModelConfig& model) {
  ChatFormat format = model.chat_format;
  if (model.chat_template == "chatml") {
    format.system_prefix = "<|im_start|>system\n";
    format.user_prefix = "<|im_start|>user\n";
    format.assistant_prefix = format.answer = "<|im_start|>assistant\n";
    format.system_suffix = format.user_suffix = format.assistant_suffix = "<|im_end|>\n";
    format.stop = {"<|im_end|>"};
  } else if (model.chat_template != "custom") {
    format.system_suffix = format.user_suffix = format.assistant_suffix = "\n\n";
  }
  if (model.chat_template == "rwkv-world") {
    format.user_prefix = "User: ";
    format.assistant_prefix = "Assistant: ";
    format.answer = "Assistant:";
    format.stop = {"\n\nUser:"};
  }
  return format;
}

std::string Render(const ChatFormat& format, const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const auto& [role, content] : messages) {
    if (role == "user") {
      absl::StrAppend(&text, format.user_prefix, content, format.user_suffix);
    } else if (role == "assistant") {
      absl::StrAppend(&text, format.assistant_prefix, content, format.assistant_suffix);
    } else {
      absl::StrAppend(&text, format.system_prefix, content, format.system_suffix);
    }
  }
  return absl::StrCat(text, format.answer);
}

std::string Continue(const ChatFormat& format, absl::string_view ended_by,
                     const std::vector<ChatMessage>& messages) {
  const std::string text = absl::StrCat(format.assistant_suffix, Render(format, messages));
  return std::string(absl::StripPrefix(text, ended_by));
}

}  // namespace aft::server::openai
