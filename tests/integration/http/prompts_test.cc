// /v1/completions with several prompts or answers, and prompts that are too long for the model.
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/http/fixture.h"
#include "tests/support/fake_loader.h"
#include "tests/support/tcp.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

Json Prompts(const std::vector<std::string>& prompts, int n) {
  return {{"prompt", prompts}, {"n", n}, {"max_tokens", 2}, {"ignore_eos", true}};
}

// Otherwise the queue could never take them, and each refusal would say when to try again.
TEST(HttpPromptsTest, TheLimitsOfAPromptHoldForAllTogether) {
  ServerConfig config = WithHttp();
  config.limits.max_prompt_bytes = 300;
  config.limits.max_prompt_tokens = 150;
  config.limits.max_queued_tokens = 400;
  HttpApi server(config);
  const auto post = [&](size_t first, size_t second, int n) {
    return server.Post("/v1/completions",
                       Prompts({std::string(first, 'a'), std::string(second, 'b')}, n));
  };
  const auto refused = [](const HttpReply& reply) {
    EXPECT_EQ(reply.status, 400);
    return reply.json()["error"].value("message", "");
  };
  EXPECT_EQ(refused(post(150, 151, 1)), "prompt: must have at most 300 bytes together, got 301");
  EXPECT_EQ(refused(post(75, 76, 1)),
            "prompt: must have at most 150 tokens together with n=1, more by prompt[1]");
  EXPECT_EQ(refused(post(25, 26, 4)),
            "prompt: must have at most 50 tokens together with n=4, more by prompt[1]");
  EXPECT_EQ(post(75, 75, 1).status, 200);
  EXPECT_EQ(post(25, 25, 4).status, 200);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(HttpPromptsTest, AnAnswerHasTheTimeOfItsCall) {
  HttpApi server;
  const int64_t before = UnixSeconds();
  const Json json = server.Post("/v1/completions", Prompts({"a"}, 1)).json();
  EXPECT_GE(json["created"].get<int64_t>(), before);
  EXPECT_LE(json["created"].get<int64_t>(), UnixSeconds());
}

// The error names the number of places, because the client may lower the number of prompts or n.
TEST(HttpPromptsTest, EachAnswerToEachPromptNeedsAPlace) {
  ServerConfig config = WithHttp();
  config.models[0].slots = 4;
  config.limits.max_queued_requests = 2;  // one client gets half of it
  HttpApi server(config);
  const HttpReply never = server.Post("/v1/completions", Prompts({"a", "b", "c"}, 2));
  EXPECT_EQ(never.status, 400);
  EXPECT_EQ(never.json()["error"]["message"],
            "prompt: needs 6 places, one for each answer to each text; the client may have 5 in "
            "the model's slots and queue");
  EXPECT_EQ(server.Post("/v1/completions", Prompts({"a", "b"}, 2)).status, 200);
}

TEST(HttpPromptsTest, TheUsageIsThatOfAllPrompts) {
  HttpApi server;
  const std::string known(300, 'k');
  for (int i = 0; i < 2; ++i) server.Post("/v1/completions", Prompts({known}, 1));
  // The unknown prompt is longer, so it ends last.
  Json usage = server.Post("/v1/completions", Prompts({known, std::string(400, 'u')}, 1)).json();
  usage = usage["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 700);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 299);
  // Each prompt counts once, like a single prompt.
  usage = server.Post("/v1/completions", Prompts({known, "a"}, 2)).json()["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 301);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 299);
  usage = server.Post("/v1/completions", Prompts({"a", "bc"}, 2)).json()["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 3);
  EXPECT_EQ(usage["completion_tokens"], 8);
  EXPECT_EQ(usage["total_tokens"], 11);
}

// Tokenising 128 bad words takes long, and a request may have 128 prompts.
TEST(HttpPromptsTest, BadWordsAreTokenisedOnceForAllPrompts) {
  std::atomic<int> encoded{0};
  TestServer server(WithHttp(), FakeModels{.before_encoding = [&](absl::string_view text) {
                      if (text == "((") ++encoded;
                    }});
  Json body = {{"max_tokens", 20},
               {"seed", 7},
               {"ignore_eos", true},
               {"allowed_token_ids", {'(', 'F', 'a', 'x'}},
               {"logit_bias", {{"70", 1.5}}},
               {"bad_words", Json::array({"((", "x"})}};
  const auto texts = [&](const std::vector<std::string>& prompts) {
    body["prompt"] = prompts;
    const TcpConnection connection(server.server().http_address());
    connection.Send(HttpPost("/v1/completions", body.dump()));
    const HttpReply reply = ParseReply(connection.ReadAll());
    EXPECT_EQ(reply.status, 200) << reply.body;
    std::vector<std::string> answers;
    const Json whole = reply.json();
    for (const Json& choice : whole["choices"]) {
      answers.push_back(choice["text"].get<std::string>());
    }
    return answers;
  };
  std::vector<std::string> expected;
  for (const char* prompt : {"one", "two", "three"}) {
    for (const std::string& text : texts({prompt})) expected.push_back(text);
  }
  encoded = 0;
  EXPECT_EQ(texts({"one", "two", "three"}), expected);
  EXPECT_EQ(encoded, 1);
}

// best_of = n leaves nothing out, and the others are vLLM's defaults.
TEST(HttpPromptsTest, DefaultsOfOtherServersAreAccepted) {
  HttpApi server;
  Json body = Prompts({"a"}, 2);
  body.update({{"best_of", 2},
               {"add_special_tokens", true},
               {"return_tokens_as_token_ids", false},
               {"spaces_between_special_tokens", true}});
  const HttpReply reply = server.Post("/v1/completions", body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["choices"].size(), 2U);
  body["best_of"] = 3;
  EXPECT_EQ(server.Post("/v1/completions", body).json()["error"]["param"], "best_of");
  body = {{"messages", {{{"role", "user"}, {"content", "a"}}}},
          {"max_tokens", 1},
          {"add_generation_prompt", true}};
  EXPECT_EQ(server.Post("/v1/chat/completions", body).status, 200);
  body["add_generation_prompt"] = false;
  EXPECT_EQ(server.Post("/v1/chat/completions", body).json()["error"]["param"],
            "add_generation_prompt");
}

TEST(HttpPromptsTest, AnErrorOfTheEngineNamesTheFieldOfTheText) {
  FakeModelRunner::Options options;
  options.max_seq_len = 20;
  HttpApi server(WithHttp(), options);
  const std::string longer(30, 'x');
  const auto expect = [&](const char* path, const Json& body, const char* param) {
    const HttpReply reply = server.Post(path, body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], param) << reply.body;
    EXPECT_EQ(reply.json()["error"]["code"], "context_length_exceeded") << reply.body;
    EXPECT_THAT(reply.body, HasSubstr("exceed the model's max_seq_len=20"));
  };
  expect("/v1/completions", {{"prompt", longer}}, "prompt");
  for (const int n : {1, 2}) {
    expect("/v1/completions", Prompts({"a", longer}, n), "prompt[1]");
  }
  const Json message = {{"role", "user"}, {"content", longer}};
  expect("/v1/chat/completions", {{"messages", {message}}}, "messages");
  expect("/v1/responses", {{"input", longer}}, "input");
  const Json first =
      server.Post("/v1/responses", {{"input", "a"}, {"max_output_tokens", 1}}).json();
  expect("/v1/responses", {{"input", longer}, {"previous_response_id", first["id"]}}, "input");
}

TEST(HttpPromptsTest, AnErrorOfARunningRequestNamesTheField) {
  HttpApi server;
  const HttpReply reply = server.Post("/v1/completions", {{"prompt", "x"},
                                                          {"allowed_token_ids", Json::array({97})},
                                                          {"bad_words", Json::array({"aa"})},
                                                          {"max_tokens", 5}});
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_EQ(reply.json()["error"]["param"], "bad_words") << reply.body;
  EXPECT_THAT(reply.body, HasSubstr("\"bad_words: leave no token to sample as number 1"));
}

}  // namespace
}  // namespace aft::server
