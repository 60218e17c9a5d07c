#include "server/registry/chat_template.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/utf8.h"
#include "server/config/checks.h"

namespace aft::server {

ChatTemplate ChatTemplateOf(const ModelConfig& config, const ModelInfo& info) {
  ChatTemplate format{config.chat_format};
  absl::string_view name = config.chat_template;
  if (name == "auto") name = info.tokenizer == "world" ? "rwkv-world" : "plain";
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

absl::Status CheckChatTemplate(const ModelConfig& config, const ModelInfo& info,
                               const Tokenizer& tokenizer) {
  if (config.chat_template == "auto") return absl::OkStatus();
  const ChatTemplate format = ChatTemplateOf(config, info);
  std::vector<std::string> texts = {
      format.system_prefix,    format.system_suffix,    format.user_prefix, format.user_suffix,
      format.assistant_prefix, format.assistant_suffix, format.answer};
  texts.insert(texts.end(), format.stop.begin(), format.stop.end());
  for (const std::string& text : texts) {
    const absl::string_view token = tokenizer.SpecialTokenIn(text);
    if (token.empty()) continue;
    return BadField(config.chat_template == "custom" ? "chat_format" : "chat_template",
                    absl::StrCat("\"", Shown(token),
                                 "\" is a special token of the tokenizer, which a text cannot "
                                 "contain"));
  }
  return absl::OkStatus();
}

}  // namespace aft::server
