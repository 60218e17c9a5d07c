#pragma once

#include "absl/status/status.h"
#include "model/api/model_runner.h"
#include "model/api/tokenizer.h"
#include "server/config/config.h"

namespace aft::server {

// The text around the messages of a conversation, and how the messages are changed.
struct ChatTemplate : ChatFormat {
  // An empty line ends a message. Therefore messages lose the space around them and, unless the
  // model wrote them, their empty lines.
  bool paragraphs = false;

  // Whether the text around messages says who wrote them. Where it does not, the model was not
  // trained on conversations.
  bool names_speakers() const { return !user_prefix.empty() || !answer.empty(); }
};

// The format of a model's conversations. REQUIRES: the config is valid.
ChatTemplate ChatTemplateOf(const ModelConfig& config, const ModelInfo& info);

// Refuses a format that was chosen for the model (not "auto") if a special token is in the text
// around messages or in a stop string. The model was trained with the token there, but it would
// read the token's characters. INVALID_ARGUMENT names the field and the token. REQUIRES: the config
// is valid.
absl::Status CheckChatTemplate(const ModelConfig& config, const ModelInfo& info,
                               const Tokenizer& tokenizer);

}  // namespace aft::server
