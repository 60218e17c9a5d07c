// Tests the text with which the next turn of a conversation continues.
#include "server/api/openai/conversation.h"

#include <string>

#include "gtest/gtest.h"
#include "model/api/model_runner.h"
#include "server/config/config.h"
#include "server/registry/chat_template.h"

namespace aft::server::openai {
namespace {

TEST(ConversationTest, ATurnLacksOnlyAStopStringWithWhichItWouldBegin) {
  ModelConfig config;
  config.chat_template = "rwkv-world";
  const ChatTemplate format = ChatTemplateOf(config, ModelInfo());
  const std::string turn = "\n\nUser: b\n\nAssistant:";
  EXPECT_EQ(Continue(format, "", {{"user", "b"}}), turn);
  EXPECT_EQ(Continue(format, "\n\nUser:", {{"user", "b"}}), " b\n\nAssistant:");
  // These stop strings do not begin the turn.
  EXPECT_EQ(Continue(format, "a request's own", {{"user", "b"}}), turn);
  EXPECT_EQ(Continue(format, "\n\nUser:", {{"developer", "s"}, {"user", "b"}}),
            "\n\nSystem: s" + turn);
}

}  // namespace
}  // namespace aft::server::openai
