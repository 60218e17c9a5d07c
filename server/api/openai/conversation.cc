#include "server/api/openai/conversation.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace aft::server::openai {
namespace {

// Returns a message as one paragraph, without empty lines. `own`: the model wrote the message, so
// its empty lines stay, because the text must be the one that the model has read.
std::string Paragraph(absl::string_view text, bool own) {
  std::string paragraph(absl::StripAsciiWhitespace(text));
  if (own) return paragraph;
  absl::StrReplaceAll({{"\r\n", "\n"}}, &paragraph);
  const auto two = [](char a, char b) { return a == '\n' && b == '\n'; };
  paragraph.erase(std::unique(paragraph.begin(), paragraph.end(), two), paragraph.end());
  return paragraph;
}

}  // namespace

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
