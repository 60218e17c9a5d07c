#pragma once

#include "model/api/model_runner.h"
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

}  // namespace aft::server
