// The errors of OpenAI's API: which field they name.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/http/fixture.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

TEST(HttpErrorsTest, AnErrorNamesTheField) {
  HttpApi server;
  const auto expect = [&](const char* path, const std::string& body, const Json& param,
                          const char* part, int status = 400) {
    const HttpReply reply = server.Ask(HttpPost(path, body));
    EXPECT_EQ(reply.status, status) << body << reply.body;
    const Json error = reply.json()["error"];
    EXPECT_EQ(error.value("param", Json()), param) << body << reply.body;
    EXPECT_THAT(error.value("message", ""), HasSubstr(part)) << body;
  };
  const char* const kCompletions = "/v1/completions";
  const char* const kChat = "/v1/chat/completions";
  expect(kCompletions, R"({"prompt": "a", "temperature": -1})", "temperature", "[0, 100]");
  expect(kCompletions, R"({"prompt": "a", "max_tokens": 0})", "max_tokens", "0 needs echo and");
  expect(kCompletions, R"({"prompt": "a", "n": 17})", "n", "must be in [1, 16]");
  expect(kChat, R"({"messages": [{"role": "user", "content": "a"}], "sampling_preset": "x"})",
         "sampling_preset", "must be one of \"rwkv\"");
  expect(kCompletions, R"({"prompt": "a", "n": 18446744073709551615})", "n", "must be in [1, 16]");
  expect(kCompletions, R"({"prompt": "a", "n": "2"})", "n", "integer");
  expect(kCompletions, R"({"prompt": "a", "max_tokens": 2.5})", "max_tokens", "an integer from 0");
  expect(kCompletions, R"({"prompt": "a", "seed": 1.5})", "seed", "integer of at most 64 bits");
  expect(kCompletions, R"({"prompt": "a", "max_tokens": 1e30})", "max_tokens", "an integer from 0");
  const auto chat = [](const char* fields) {
    return absl::StrCat(R"({"messages": [{"role": "user", "content": "a"}], )", fields, "}");
  };
  const std::string texts = chat(R"("skip_special_tokens": false)");
  expect(kChat, texts, "skip_special_tokens", "is not supported");
  expect(kChat, chat(R"("logprobs": true, "top_logprobs": 21)"), "top_logprobs", "[0, 20], got 21");
  expect(kChat, chat(R"("max_tokens": 2, "max_completion_tokens": 3)"), "max_tokens",
         "is given as max_completion_tokens too");
  expect(kChat, chat(R"("use_beam_search": true)"), "use_beam_search", "is not supported");
  expect(kChat, chat(R"("max_tokens": 0, "max_completion_tokens": null)"), "max_tokens", "in [1, ");
  expect(kCompletions, R"({"prompt": [1, 9999]})", "prompt[1]", "must be below");
  expect(kCompletions, R"({"prompt": ["a", ""]})", "prompt[1]", "must not be empty");
  expect(kCompletions, R"({"prompt": ["a", [1, 9999]]})", "prompt[1][1]", "must be below");
  expect(kCompletions, R"({"prompt": ["a", 3]})", "prompt[1]", "must be a string");
  expect(kCompletions, R"({"prompt": 1})", "prompt", "must be a string");
  expect(kCompletions, R"({"prompt": ""})", "prompt", "must not be empty");
  expect(kCompletions, R"({})", "prompt", "is missing");
  expect(kCompletions, R"({"prompt": "a", "suffix": "b"})", "suffix", "is not supported");
  expect(kCompletions, R"({"prompt": "a", "best_of": 2})", "best_of", "is not supported");
  expect(kCompletions, R"({"prompt": "a", "frobnicate": 2})", "frobnicate", "no such option");
  const std::string name(65, 'a');  // longer than that of any option
  expect(kCompletions, absl::StrCat(R"({"prompt": "a", ")", name, R"(": 1})"), name,
         "no such option");
  const std::string null =
      absl::StrCat(R"({"prompt": "a", "max_tokens": 1, ")", name, R"(": null})");
  EXPECT_EQ(server.Ask(HttpPost(kCompletions, null)).status, 200);
  expect(kCompletions, R"({"prompt": "a", "max_token": 2})", "max_token",
         "did you mean max_tokens?");
  expect(kChat, R"({"message": []})", "message", "did you mean messages?");
  expect(kCompletions, R"({"messages": []})", "messages", "a field of /v1/chat/completions");
  expect(kChat, R"({"prompt": "a"})", "prompt", "a field of /v1/completions");
  expect(kCompletions, R"({"prompt": "a", "logprobs": true})", "logprobs",
         "an integer from 0 to 20");
  expect(kChat, chat(R"("top_logprobs": true)"), "top_logprobs", "an integer from 0 to 20");
  expect(kCompletions, R"({"prompt": "a", "max_tokens": "5"})", "max_tokens", "must be an integer");
  expect(kCompletions, R"({"prompt": "a", "temperature": "1"})", "temperature", "must be a number");
  expect(kCompletions, R"({"prompt": "a", "ignore_eos": "true"})", "ignore_eos", "true or false");
  expect(kCompletions, R"({"prompt": "a", "stream": 1})", "stream", "true or false");
  expect(kCompletions, R"({"prompt": "a", "service_tier": "gold"})", "service_tier",
         "must be auto, default, flex or priority");
  expect(kCompletions, R"({"prompt": "a", "priority": "1"})", "priority", "must be an integer");
  expect(kCompletions, R"({"prompt": "a", "stream_options": {"include_usage": true}})",
         "stream_options", "needs stream");
  expect(kCompletions, R"({"prompt": "a", "model": 3})", "model", "must be a string");
  expect(kCompletions, R"({"prompt": "a", "prompt": "b"})", "prompt", "twice");
  expect("/v1/responses", R"({"input": "a", "metadata": {"": "x", "": "y"}})", nullptr, "twice");
  expect("/v1/responses", R"({"model": "fake", "metadata": {"model": "x", "model": "y"}})",
         "metadata.model", "twice");
  expect(kCompletions, R"({"prompt": "a", "model": "other"})", "model", "no model", 404);
  expect(kChat, R"({"messages": []})", "messages", "one message or more");
  expect(kChat, R"({"messages": [{"role": "tool", "content": "a"}]})", "messages[0].role", "must");
  expect(kChat, R"({"messages": [{"role": "user"}]})", "messages[0].content", "must be a string");
  expect(kChat, R"({"messages": [{"role": "user", "content": "a", "tool_calls": [{"id": "b"}]}]})",
         "messages[0].tool_calls", "is not supported");
  expect(kCompletions, R"({"prompt": "a", "stream": true, "stream_options": {"usage": true}})",
         "stream_options.usage", "there is no such option");
  for (const char* entry : {R"({"type": "image_url", "image_url": {}})", R"({"type": "text"})",
                            R"({"type": "text", "text": 5})"}) {
    expect(kChat, absl::StrCat(R"({"messages": [{"role": "user", "content": [)", entry, "]}]}"),
           "messages[0].content[0]", "must be {\"type\": \"text\", \"text\": ...}");
  }
  expect(kChat, chat(R"("tools": [{"type": "f"}])"), "tools", "is not supported");
  expect(kChat, chat(R"("top_logprobs": 1)"), "top_logprobs", "needs logprobs");
  expect(kChat, chat(R"("response_format": {"type": "json_object"})"), "response_format",
         "is not supported");
  for (const std::string& body :
       {std::string("[]"), std::string("{"), std::string("\"\xff\""), std::string("{\"a\": 1e999}"),
        std::string("{\"prompt\": \"\xff\"}"), std::string("{}\0", 3), std::string(3000, '['),
        "{\"a\":" + std::string(40, '[') + std::string(40, ']') + "}",
        R"({"a\"b": )" + std::string(32, '[') + std::string(32, ']') + "}"}) {
    expect(kCompletions, body, nullptr, "the body ");
  }
  // An object in 31 lists is the deepest one. Brackets in a text do not count.
  const std::string deep = absl::StrCat(R"({"prompt": "\"[[[[", "max_tokens": 1, "user": )",
                                        std::string(31, '['), std::string(31, ']'), "}");
  EXPECT_EQ(server.Ask(HttpPost(kCompletions, deep)).status, 200);
  expect(kCompletions, "{\"prompt\": }", nullptr, "in UTF-8; byte 12 is wrong");
  expect(kCompletions, "{\"prompt\"", nullptr, "in UTF-8; it ends too early");
  expect(kCompletions, "{\"a\": 1e999}", nullptr,
         "the body has a number that is too large; it ends at byte 11");
  // The parser must not read all objects again for each of them.
  std::string objects = R"({"prompt": "a", "max_tokens": 1, "user": [{})";
  for (int i = 0; i < 300'000; ++i) objects += ",{}";
  EXPECT_EQ(server.Ask(HttpPost(kCompletions, objects + "]}")).status, 200);
  EXPECT_EQ(server.Post(kCompletions, {{"prompt", "still here"}, {"max_tokens", 2}}).status, 200);
}

// Clients that shorten a prompt, or ask another model, look for this code.
TEST(HttpErrorsTest, OnlyAPromptWithTooManyTokensHasTheCodeForIt) {
  ServerConfig config = WithHttp();
  config.limits.max_prompt_tokens = 20;
  config.limits.max_prompt_bytes = 40;
  HttpApi server(config);
  const auto expect = [&](const char* path, const Json& body, const char* code) {
    const HttpReply reply = server.Post(path, body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.json()["error"]["code"], code) << reply.body;
  };
  const char* const kTooLong = "context_length_exceeded";
  const std::string many(30, 'x');
  const Json half = std::string(15, 'x');
  expect("/v1/completions", {{"prompt", many}}, kTooLong);
  expect("/v1/completions", {{"prompt", std::vector<int>(30, 'x')}}, kTooLong);
  expect("/v1/completions", {{"prompt", Json::array({"a", many})}}, kTooLong);
  expect("/v1/completions", {{"prompt", Json::array({half, half})}}, kTooLong);
  expect("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", many}}}}}, kTooLong);
  expect("/v1/responses", {{"input", many}}, kTooLong);
  expect("/v1/completions", {{"prompt", std::string(41, 'x')}}, "invalid_value");
  expect("/v1/completions", {{"prompt", ""}}, "invalid_value");
  expect("/v1/completions", {{"prompt", "a"}, {"bad_words", Json::array({std::string(65, 'x')})}},
         "invalid_value");
  expect("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1 << 30}}, "invalid_value");
  expect("/v1/embeddings", {{"input", many}}, "invalid_value");  // as OpenAI's, which has none
}

}  // namespace
}  // namespace aft::server
