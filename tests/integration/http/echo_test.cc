// /v1/completions with `echo` and `logprobs`: the log-probabilities of the prompt and of its
// answer.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/http/fixture.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

constexpr char kEchoPath[] = "/v1/completions";
constexpr TokenId kEndOfText = 256;

Json EchoBody(const Json& prompt, int max_tokens) {
  return {
      {"prompt", prompt}, {"max_tokens", max_tokens}, {"seed", 7}, {"echo", true}, {"logprobs", 2}};
}

// Returns what the same request receives over gRPC.
v1::CompleteResponse ScoredOverGrpc(HttpApi& server, const std::string& prompt, uint32_t max_tokens,
                                    uint32_t n) {
  v1::GenerateRequest request;
  request.set_raw(prompt);
  request.set_n(n);
  request.set_prompt_logprobs(true);
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_seed(7);
  request.mutable_output()->set_top_logprobs(2);
  return server.OverGrpc(request);
}

// The choices of a stream, each as one that came whole. The first event of a choice repeats its
// prompt, with `first_tokens` tokens.
std::vector<Json> Collected(const HttpReply& reply, size_t choices, size_t first_tokens) {
  std::vector<Json> all(choices);
  for (const std::string& event : reply.events()) {
    if (event == "[DONE]") continue;
    const Json chunk = Json::parse(event);
    for (const Json& part : chunk["choices"]) {
      Json& choice = all.at(part["index"].get<size_t>());
      if (choice.is_null()) {
        choice = part;
        EXPECT_EQ(choice["logprobs"]["tokens"].size(), first_tokens) << choice;
        continue;
      }
      choice["text"] = choice["text"].get<std::string>() + part["text"].get<std::string>();
      choice["finish_reason"] = part["finish_reason"];
      for (const auto& [name, list] : part["logprobs"].items()) {
        for (const Json& one : list) choice["logprobs"][name].push_back(one);
      }
    }
  }
  return all;
}

// Returns the choices of the answer, after checking that a stream has the same ones.
std::vector<Json> ChoicesOf(HttpApi& server, Json body, size_t prompt_tokens) {
  const HttpReply reply = server.Post(kEchoPath, body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  const std::vector<Json> choices = reply.json().value("choices", std::vector<Json>());
  body["stream"] = true;
  const std::vector<Json> streamed =
      Collected(server.Post(kEchoPath, body), choices.size(), prompt_tokens);
  EXPECT_EQ(Json(choices), Json(streamed));
  return choices;
}

// The choice has the log-probabilities that gRPC has.
void ExpectLogprobs(const Json& choice, const v1::ScoreChunk& scores, const v1::Answer& answer,
                    size_t prompt_tokens) {
  const Json& logprobs = choice["logprobs"];
  std::vector<const v1::TokenLogprobs*> expected = {nullptr};
  for (const v1::TokenLogprobs& one : scores.logprobs()) expected.push_back(&one);
  EXPECT_EQ(expected.size(), prompt_tokens);
  for (const v1::TokenLogprobs& one : answer.logprobs()) expected.push_back(&one);
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    ASSERT_EQ(logprobs[list].size(), expected.size()) << list;
  }
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  for (size_t i = 1; i < expected.size(); ++i) {
    EXPECT_EQ(logprobs["token_logprobs"][i].get<float>(), expected[i]->logprob()) << i;
    float best = -1e30F;
    for (const Json& one : logprobs["top_logprobs"][i]) best = std::max(best, one.get<float>());
    EXPECT_EQ(best, std::max(expected[i]->top(0).logprob(), expected[i]->logprob())) << i;
  }
}

TEST(HttpEchoTest, LogProbabilitiesAreThoseOfGrpc) {
  HttpApi server;
  const std::string prompt(150, 'p');  // three steps
  for (const auto& [max_tokens, n] : {std::pair(0, 1), std::pair(4, 1), std::pair(4, 3)}) {
    const v1::CompleteResponse want =
        ScoredOverGrpc(server, prompt, static_cast<uint32_t>(max_tokens), static_cast<uint32_t>(n));
    Json body = EchoBody(prompt, max_tokens);
    body["n"] = n;
    const std::vector<Json> choices = ChoicesOf(server, body, prompt.size());
    ASSERT_EQ(choices.size(), static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      const Json& choice = choices[static_cast<size_t>(i)];
      EXPECT_EQ(choice["text"], prompt + want.answers(i).text());
      EXPECT_EQ(choice["finish_reason"], "length");
      EXPECT_EQ(want.answers(i).has_prompt_scores(), i == 0);
      ExpectLogprobs(choice, want.answers(0).prompt_scores(), want.answers(i), prompt.size());
    }
  }
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(HttpEchoTest, EachOfSeveralPromptsHasItsOwn) {
  HttpApi server;
  for (const int n : {1, 2}) {
    Json body = EchoBody({"hello", Json::array({'a', 'b', 'c', 'd', 'e'})}, 3);
    body["n"] = n;
    const std::vector<Json> choices = ChoicesOf(server, body, 5);
    ASSERT_EQ(choices.size(), static_cast<size_t>(2 * n));
    for (int i = 0; i < 2 * n; ++i) {
      const v1::CompleteResponse want = ScoredOverGrpc(server, i < n ? "hello" : "abcde", 3, 2);
      ExpectLogprobs(choices[static_cast<size_t>(i)], want.answers(0).prompt_scores(),
                     want.answers(i % n), 5);
    }
  }
  // A prompt of one token has nothing to score.
  const Json one = ChoicesOf(server, EchoBody("x", 0), 1)[0];
  EXPECT_EQ(one["text"], "x");
  EXPECT_EQ(one["logprobs"]["token_logprobs"], Json::array({nullptr}));
}

TEST(HttpEchoTest, OffsetsCountCharacters) {
  FakeModelRunner::Options options;
  const std::string prompt = "a\u00e9\u20ac\xE2";  // the last one is not complete,
  const std::string answer =
      "\xA9"
      "b\u20ac\xFF"
      "c\u00e9";  // and the answer does not complete it
  options.next_token = [all = prompt + answer](uint64_t /*hash*/, int64_t count) {
    return static_cast<TokenId>(
        static_cast<unsigned char>(all[static_cast<size_t>(count) % all.size()]));
  };
  HttpApi server(WithHttp(), options);
  Json ids = Json::array();
  for (const char c : prompt) ids.push_back(static_cast<unsigned char>(c));
  const Json choice =
      ChoicesOf(server, EchoBody(ids, static_cast<int>(answer.size())), ids.size())[0];
  EXPECT_EQ(choice["text"],
            "a\u00e9\u20ac\uFFFD"
            "\uFFFDb\u20ac\uFFFD"
            "c\u00e9");
  EXPECT_EQ(choice["logprobs"]["text_offset"],
            Json({0, 1, 1, 2, 2, 2, 3, 4, 5, 6, 6, 6, 7, 8, 9, 9}));
  EXPECT_EQ(choice["logprobs"]["tokens"][1], "bytes:\\xc3");
}

// Tools that score a continuation ask for one token, and leave the last entry out.
TEST(HttpEchoTest, TheTokenThatEndedTheAnswerIsTheLastEntry) {
  FakeModelRunner::Options options;
  options.next_token = [](uint64_t /*hash*/, int64_t /*count*/) { return kEndOfText; };
  HttpApi server(WithHttp(), options);
  for (const int n : {1, 2}) {
    Json body = EchoBody("hello", 1);
    body["n"] = n;
    for (const Json& choice : ChoicesOf(server, body, 5)) {
      EXPECT_EQ(choice["text"], "hello");
      EXPECT_EQ(choice["finish_reason"], "stop");
      ASSERT_EQ(choice["logprobs"]["token_logprobs"].size(), 6U);
      EXPECT_TRUE(choice["logprobs"]["token_logprobs"][5].is_number());
      EXPECT_EQ(choice["logprobs"]["text_offset"][5], 5);
    }
  }
  Json silent = EchoBody("hello", 1);
  silent["echo"] = false;
  const Json choice = server.Post(kEchoPath, silent).json()["choices"][0];
  EXPECT_EQ(choice["logprobs"]["tokens"], Json::array());
}

TEST(HttpEchoTest, APromptWithTooMuchTextIsRefusedByTheNameOfTheField) {
  ServerConfig config = WithHttp();
  config.limits.max_prompt_bytes = 100;
  HttpApi server(config);
  const HttpReply reply = server.Post(kEchoPath, EchoBody(std::vector<int>(40, 0xFF), 1));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["param"], "echo");
  EXPECT_THAT(reply.body, HasSubstr("echo: must not be set: the prompt's text has 120 bytes"));
}

TEST(HttpEchoTest, RefusesWhatHasNoAnswer) {
  ServerConfig config = WithHttp();
  config.limits.max_stream_buffer_bytes = 2000;
  HttpApi server(config);
  const auto message = [&](const Json& body) {
    return server.Post(kEchoPath, body).json()["error"].value("message", "");
  };
  Json body = EchoBody("hello", 0);
  body["n"] = 2;
  EXPECT_THAT(message(body), HasSubstr("n: must be 1 if max_tokens is 0"));
  body = EchoBody("hello", 0);
  body.erase("logprobs");
  EXPECT_THAT(message(body),
              HasSubstr("max_tokens: must be at least 1, got 0; 0 needs echo and logprobs"));
  const Json large = EchoBody(std::string(100, 'x'), 1);
  EXPECT_THAT(message(large), HasSubstr("larger than max_stream_buffer_bytes"));
  Json stream = large;
  stream["stream"] = true;
  EXPECT_THAT(server.Post(kEchoPath, stream).body,
              HasSubstr("larger than max_stream_buffer_bytes"));
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

}  // namespace
}  // namespace aft::server
