#include "server/api/openai/chat_template.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace aft::server::openai {
namespace {

// A message as a paragraph. The model's own keeps its empty lines, so that its text stays the one
// that the model has read.
std::string Paragraph(absl::string_view text, bool own) {
  std::string paragraph(absl::StripAsciiWhitespace(text));
  if (own) return paragraph;
  absl::StrReplaceAll({{"\r\n", "\n"}}, &paragraph);
  const auto two = [](char a, char b) { return a == '\n' && b == '\n'; };
  paragraph.erase(std::unique(paragraph.begin(), paragraph.end(), two), paragraph.end());
  return paragraph;
}

}  // namespace

ChatTemplate FormatOf(const ServedModel& model) {
  ChatTemplate format{model.config.chat_format};
  absl::string_view name = model.config.chat_template;
  if (name == "auto") name = model.info.tokenizer == "world" ? "rwkv-world" : "plain";
  if (name == "chatml") {
    format.system_prefix = "<|im_start|>system\n";
    format.user_prefix = "<|im_start|>user\n";
    format.assistant_prefix = format.answer = "<|im_start|>assistant\n";
    format.system_suffix = format.user_suffix = format.assistant_suffix = "<|im_end|>\n";
    format.stop = {"<|im_end|>"};
  } else if (name != "custom") {
    format.system_suffix = format.user_suffix = format.assistant_suffix = "\n\n";
  }
  if (name == "rwkv-world") {
    format.paragraphs = true;
    format.system_prefix = "System: ";
    format.user_prefix = "User: ";
    format.assistant_prefix = "Assistant: ";
    format.answer = "Assistant:";
    format.stop = {"\n\nUser:"};
  }
  return format;
}

std::string Render(const ChatTemplate& format, const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const auto& [role, message] : messages) {
    const std::string content =
        format.paragraphs ? Paragraph(message, role == "assistant") : message;
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

std::string Continue(const ChatTemplate& format, absl::string_view ended_by,
                     const std::vector<ChatMessage>& messages) {
  const std::string text = absl::StrCat(format.assistant_suffix, Render(format, messages));
  return std::string(absl::StripPrefix(text, ended_by));
}

}  // namespace aft::server::openai
