// /v1/completions and /v1/chat/completions compared with Complete over gRPC, with a fake model.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/http/fixture.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/tcp.h"

namespace aft::server {
namespace {

using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;

v1::GenerateRequest Request(const std::string& text, uint32_t max_tokens, uint32_t n = 1) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_seed(7);
  request.set_n(n);
  return request;
}

Json Body(const std::string& prompt, int max_tokens) {
  return {{"model", "fake"}, {"prompt", prompt}, {"max_tokens", max_tokens}, {"seed", 7}};
}

Json Chat(const std::vector<Json>& messages, int max_tokens) {
  return {{"messages", messages}, {"max_completion_tokens", max_tokens}, {"seed", 7}};
}

// The text of one choice of a stream.
std::string Streamed(const HttpReply& reply, uint32_t index, const char* place) {
  std::string text;
  for (const std::string& event : reply.events()) {
    if (event == "[DONE]") continue;
    const Json chunk = Json::parse(event);
    EXPECT_EQ(DumpJson(nlohmann::ordered_json::parse(event)), event);
    for (const Json& choice : chunk["choices"]) {
      if (choice["index"] != index) continue;
      text += std::string(place) == "text" ? choice["text"].get<std::string>()
                                           : choice["delta"].value("content", "");
    }
  }
  return text;
}

TEST(HttpGenerationTest, CompletionsEqualThoseOfGrpc) {
  HttpApi server;
  for (const uint32_t n : {1U, 3U}) {
    const v1::CompleteResponse want = server.OverGrpc(Request("hello", 9, n));
    Json body = Body("hello", 9);
    body["n"] = n;
    const HttpReply reply = server.Post("/v1/completions", body);
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_THAT(reply.head, HasSubstr("Content-Type: application/json\r\n"));
    const Json json = reply.json();
    EXPECT_EQ(json["object"], "text_completion");
    EXPECT_EQ(json["model"], "fake");
    ASSERT_EQ(json["choices"].size(), n);
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    const HttpReply stream = server.Post("/v1/completions", body);
    ASSERT_EQ(stream.status, 200) << stream.body;
    EXPECT_THAT(stream.head, HasSubstr("Content-Type: text/event-stream; charset=utf-8\r\n"));
    const std::vector<std::string> events = stream.events();
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_EQ(Json::parse(events[events.size() - 2])["usage"], json["usage"]);
    EXPECT_EQ(Json::parse(events[0]).value("usage", Json("absent")), Json());
    for (uint32_t i = 0; i < n; ++i) {
      EXPECT_EQ(json["choices"][i]["text"], want.answers(static_cast<int>(i)).text());
      EXPECT_EQ(json["choices"][i]["finish_reason"], "length");
      EXPECT_EQ(Streamed(stream, i, "text"), want.answers(static_cast<int>(i)).text());
    }
    EXPECT_EQ(json["usage"]["prompt_tokens"], 5);
    EXPECT_EQ(json["usage"]["completion_tokens"], 9 * n);
    EXPECT_EQ(json["usage"]["total_tokens"], 5 + 9 * n);
  }
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "Completions")), 4);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(HttpGenerationTest, PromptsMayBeTokensAndBeEchoed) {
  HttpApi server;
  const std::string want = server.OverGrpc(Request("hey", 4)).answers(0).text();
  Json body = Body("", 4);
  for (const Json& prompt : {Json("hey"), Json::array({"hey"}), Json::array({'h', 'e', 'y'}),
                             Json::array({Json::array({'h', 'e', 'y'})})}) {
    body["prompt"] = prompt;
    EXPECT_EQ(server.Post("/v1/completions", body).json()["choices"][0]["text"], want) << prompt;
  }
  body["echo"] = true;
  EXPECT_EQ(server.Post("/v1/completions", body).json()["choices"][0]["text"], "hey" + want);
  body["stream"] = true;
  body["n"] = 2;
  const HttpReply stream = server.Post("/v1/completions", body);
  EXPECT_EQ(Streamed(stream, 0, "text"), "hey" + want);
  EXPECT_EQ(Streamed(stream, 1, "text").substr(0, 3), "hey");
}

TEST(HttpGenerationTest, SeveralPromptsHaveAnswersOfTheirOwn) {
  HttpApi server;
  const std::vector<std::string> prompts = {"hello", "a", "hey"};
  for (const uint32_t n : {1U, 2U}) {
    Json body = Body("", 5);
    body["prompt"] = {"hello", {'a'}, "hey"};
    body["n"] = n;
    body["echo"] = true;
    const Json json = server.Post("/v1/completions", body).json();
    ASSERT_EQ(json["choices"].size(), 3 * n) << json;
    EXPECT_EQ(json["usage"]["completion_tokens"], 3 * 5 * n);
    body["stream"] = true;
    const HttpReply stream = server.Post("/v1/completions", body);
    for (uint32_t i = 0; i < 3 * n; ++i) {
      const std::string& prompt = prompts[i / n];
      const v1::CompleteResponse want = server.OverGrpc(Request(prompt, 5, n));
      const std::string text = prompt + want.answers(static_cast<int>(i % n)).text();
      EXPECT_EQ(json["choices"][i]["index"], i);
      EXPECT_EQ(json["choices"][i]["text"], text);
      EXPECT_EQ(Streamed(stream, i, "text"), text);
    }
  }
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(HttpGenerationTest, PromptsAreAcceptedAllOrNone) {
  ServerConfig config = WithHttp();
  config.models[0].slots = 1;
  config.limits.max_queued_requests = 2;
  config.scheduling.max_client_queued_requests = 2;
  config.limits.max_texts = 5;
  HttpApi server(config);
  const auto post = [&](size_t prompts) {
    Json body = Body("", 1);
    body["prompt"] = std::vector<std::string>(prompts, "a");
    return server.Post("/v1/completions", body);
  };
  EXPECT_EQ(post(3).status, 200);
  const HttpReply never = post(4);
  EXPECT_EQ(never.status, 400);
  EXPECT_THAT(never.body, HasSubstr("prompt: needs 4 places"));
  EXPECT_THAT(post(5).body, HasSubstr("prompt: needs 5 places"));
  EXPECT_THAT(post(6).body, HasSubstr("prompt: must have at most 5 entries (limits.max_texts)"));
  EXPECT_THAT(post(401).body, HasSubstr("prompt: must have at most 400 entries, got 401"));
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(HttpGenerationTest, ConversationsUseTheModelsTemplate) {
  const std::vector<Json> messages = {
      {{"role", "developer"}, {"content", "S"}},  // newer models call system so
      {{"role", "user"}, {"content", "a\n\r\nb "}},
      {{"role", "assistant"}, {"content", " c\n\nd"}},
      {{"role", "user"},
       {"content", {{{"type", "text"}, {"text", "e"}}, {{"type", "text"}, {"text", "f"}}}}}};
  const char* const plain = "S\n\na\n\r\nb \n\n c\n\nd\n\nef\n\n";
  const char* const world =
      "System: S\n\nUser: a\nb\n\nAssistant: c\n\nd\n\nUser: ef\n\nAssistant:";
  const std::tuple<const char*, const char*, const char*> prompts[] = {
      {"plain", "world", plain},
      {"chatml", "bytes",
       "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na\n\r\nb <|im_end|>\n"
       "<|im_start|>assistant\n c\n\nd<|im_end|>\n<|im_start|>user\nef<|im_end|>\n"
       "<|im_start|>assistant\n"},
      {"rwkv-world", "bytes", world},
      {"auto", "bytes", plain},
      {"auto", "world", world}};
  for (const auto& [name, tokenizer, prompt] : prompts) {
    ServerConfig config = WithHttp();
    config.models[0].chat_template = name;
    FakeModelRunner::Options model;
    model.tokenizer = tokenizer;
    HttpApi server(config, model);
    const std::string want = server.OverGrpc(Request(prompt, 6)).answers(0).text();
    Json body = Chat(messages, 6);
    const Json json = server.Post("/v1/chat/completions", body).json();
    EXPECT_EQ(json["object"], "chat.completion");
    EXPECT_EQ(json["choices"][0]["message"], (Json{{"role", "assistant"}, {"content", want}}));
    EXPECT_EQ(json["usage"]["prompt_tokens"], std::string(prompt).size());
    body["stream"] = true;
    const HttpReply stream = server.Post("/v1/chat/completions", body);
    const Json first = Json::parse(stream.events().front());
    EXPECT_EQ(first["object"], "chat.completion.chunk");
    EXPECT_EQ(first["choices"][0]["delta"]["role"], "assistant");
    EXPECT_EQ(Streamed(stream, 0, "delta"), want);

    // Over gRPC the client makes the prompt.
    v1::GetRequest get;
    get.set_name(config.models[0].name);
    v1::GetResponse got;
    grpc::ClientContext context;
    ASSERT_TRUE(server.models().Get(&context, get, &got).ok());
    const v1::ChatFormat& format = got.model().chat_format();
    EXPECT_EQ(got.model().has_chat_format(), prompt != plain);
    EXPECT_EQ(format.stop().empty(), prompt == plain);
    if (prompt == plain) continue;
    const std::string middle = absl::StrCat(format.system_prefix(), "S", format.system_suffix(),
                                            format.user_prefix(), "a");
    EXPECT_THAT(std::string(prompt), testing::StartsWith(middle));
    const std::string end = absl::StrCat("d", format.assistant_suffix(), format.user_prefix(), "ef",
                                         format.user_suffix(), format.answer());
    EXPECT_THAT(std::string(prompt), testing::EndsWith(end));
    EXPECT_THAT(std::string(prompt), HasSubstr(format.assistant_prefix()));
  }
}

// The turn ends there for a conversation, unless the request has stop strings of its own.
TEST(HttpGenerationTest, AnAnswerEndsWhereTheTemplateEndsATurn) {
  for (const auto& [name, end] :
       {std::pair("chatml", "<|im_end|>"), std::pair("rwkv-world", "\n\nUser:")}) {
    ServerConfig config = WithHttp();
    config.models[0].chat_template = name;
    FakeModelRunner::Options model;
    model.next_token = [text = absl::StrCat("on and on", end)](uint64_t /*hash*/, int64_t count) {
      return static_cast<TokenId>(text[static_cast<size_t>(count) % text.size()]);
    };
    HttpApi server(config, model);
    Json body = Chat({{{"role", "user"}, {"content", "x"}}}, 60);
    Json choice = server.Post("/v1/chat/completions", body).json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop") << name;
    EXPECT_THAT(choice["message"]["content"].get<std::string>(), Not(HasSubstr(end)));
    body["stop"] = {"never"};
    choice = server.Post("/v1/chat/completions", body).json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "length") << name;
    EXPECT_THAT(choice["message"]["content"].get<std::string>(), HasSubstr(end));
    const Json input = {{"input", "x"}, {"max_output_tokens", 60}};
    EXPECT_EQ(server.Post("/v1/responses", input).json()["status"], "completed") << name;
  }
}

TEST(HttpGenerationTest, StopsAndLogprobsHaveOpenAisForm) {
  HttpApi server;
  v1::GenerateRequest request = Request("x", 80);
  const std::string whole = server.OverGrpc(request).answers(0).text();
  const size_t place = whole.find_first_of("abcdefghijklmnopqrstuvwxyz", 1);
  ASSERT_NE(place, std::string::npos) << whole;
  const std::string stop = whole.substr(place, 1);
  request.mutable_stop()->add_strings(stop);
  request.mutable_output()->set_top_logprobs(2);
  const v1::Answer want = server.OverGrpc(request).answers(0);
  Json body = Body("x", 80);
  body["stop"] = stop;
  body["logprobs"] = 2;
  const Json choice = server.Post("/v1/completions", body).json()["choices"][0];
  EXPECT_EQ(choice["text"], want.text());
  EXPECT_EQ(choice["finish_reason"], "stop");
  ASSERT_EQ(choice["logprobs"]["tokens"].size(), static_cast<size_t>(want.token_ids_size()));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"][0].get<float>(), want.logprobs(0).logprob());
  EXPECT_GE(choice["logprobs"]["top_logprobs"][0].size(), 2U);
  Json chat = Chat({{{"role", "user"}, {"content", "x"}}}, 3);
  chat["logprobs"] = true;
  chat["top_logprobs"] = 1;
  const Json content =
      server.Post("/v1/chat/completions", chat).json()["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3U);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 1U);
  EXPECT_EQ(content[0]["bytes"].size(), 1U);
  chat.erase("top_logprobs");
  const Json own =
      server.Post("/v1/chat/completions", chat).json()["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(own.size(), 3U);
  EXPECT_EQ(own[0]["top_logprobs"].size(), 0U);
  EXPECT_TRUE(own[0]["logprob"].is_number());
  chat["stream"] = true;
  const HttpReply stream = server.Post("/v1/chat/completions", chat);
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(stream.events().back(), "[DONE]");
}

TEST(HttpGenerationTest, TokensHaveIdsAndBytes) {
  HttpApi server;
  const v1::Answer want = server.OverGrpc(Request("x", 80)).answers(0);
  const std::vector<uint32_t> ids(want.token_ids().begin(), want.token_ids().end());
  Json body = Body("x", 80);
  body["logprobs"] = 0;
  body["return_token_ids"] = true;
  const Json whole = server.Post("/v1/completions", body).json()["choices"][0];
  EXPECT_EQ(whole["token_ids"], Json(ids));
  int parts = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const char byte = static_cast<char>(ids[i]);
    const bool part = ids[i] > 127;  // a part of a character
    parts += part;
    EXPECT_EQ(whole["logprobs"]["tokens"][i],
              part ? absl::StrFormat("bytes:\\x%02x", ids[i]) : std::string(ids[i] < 256, byte));
  }
  EXPECT_GT(parts, 0);
  body["stream"] = true;
  std::vector<uint32_t> streamed;
  for (const std::string& event : server.Post("/v1/completions", body).events()) {
    if (event == "[DONE]") continue;
    for (const Json& id : Json::parse(event)["choices"][0].value("token_ids", Json::array())) {
      streamed.push_back(id.get<uint32_t>());
    }
  }
  EXPECT_EQ(streamed, ids);
  body["return_token_ids"] = false;
  EXPECT_THAT(server.Post("/v1/completions", body).body, Not(HasSubstr("token_ids")));
  Json chat = Chat({{{"role", "user"}, {"content", "x"}}}, 3);
  chat["return_token_ids"] = true;
  EXPECT_EQ(server.Post("/v1/chat/completions", chat).json()["choices"][0]["token_ids"].size(), 3U);
}

TEST(HttpGenerationTest, FieldsThatAskForNothingAreAccepted) {
  HttpApi server;
  const Json answer = {{"role", "assistant"},
                       {"content", "y"},
                       {"refusal", nullptr},
                       {"tool_calls", Json::array()},
                       {"function_call", nullptr}};
  const Json user = {{"role", "user"}, {"content", "x"}, {"name", "me"}, {"type", "text"}};
  const Json stream = {{"include_obfuscation", true}, {"continuous_usage_stats", true}};
  Json body = Chat({user, answer}, 2);
  body.update({{"tools", Json::array()},
               {"response_format", {{"type", "text"}}},
               {"user", "a user"},
               {"metadata", {{"a", "b"}}},
               {"store", false},
               {"parallel_tool_calls", true},
               {"service_tier", "auto"},
               {"logit_bias", Json::object()},
               {"frequency_penalty", 0},
               {"top_k", -1},
               {"top_logprobs", 0},
               {"stream", true},
               {"stream_options", stream},
               {"safety_identifier", "a user"},
               {"prompt_cache_key", "a key"},
               {"use_beam_search", false},
               {"echo", false},
               {"skip_special_tokens", true},
               {"length_penalty", 1.0},
               {"continue_final_message", false},
               {"reasoning_effort", "none"},
               {"best_of", 1},
               {"modalities", Json::array({"text"})},
               {"truncation", "disabled"}});
  for (const char* field :
       {"audio", "background", "conversation", "functions", "include", "max_tokens",
        "max_tool_calls", "prediction", "stop", "temperature", "verbosity", "web_search_options"}) {
    body[field] = nullptr;
  }
  for (const char* choice : {"none", "auto"}) {
    body["function_call"] = body["tool_choice"] = choice;
    const HttpReply reply = server.Post("/v1/chat/completions", body);
    EXPECT_EQ(reply.status, 200) << choice;
    EXPECT_THAT(reply.body, Not(HasSubstr("usage")));
  }
  // Some clients send one number under both names, also for completions.
  body = Body("x", 3);
  body["max_completion_tokens"] = 3;
  EXPECT_EQ(server.Post("/v1/completions", body).json()["usage"]["completion_tokens"], 3);
  body = {{"input", "x"}, {"max_output_tokens", 1}, {"reasoning", {{"effort", "none"}}}};
  const Json format = {{"type", "text"}};
  for (const Json& text :
       {Json{{"format", format}, {"verbosity", nullptr}}, Json{{"format", nullptr}}}) {
    body["text"] = text;
    EXPECT_EQ(server.Post("/v1/responses", body).status, 200) << text;
  }
  body["text"]["verbosity"] = "low";
  EXPECT_EQ(server.Post("/v1/responses", body).json()["error"]["param"], "text");
}

TEST(HttpGenerationTest, IntegersMayHaveAFractionOfZeroAndSeedsASign) {
  HttpApi server;
  const auto text = [&server](const std::string& body) {
    const HttpReply reply = server.Ask(HttpPost("/v1/completions", body));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["choices"];
  };
  EXPECT_EQ(text(R"({"prompt": [104.0, 105], "max_tokens": 3e0, "n": 2.0, "seed": 7.0})"),
            text(R"({"prompt": [104, 105], "max_tokens": 3, "n": 2, "seed": 7})"));
  EXPECT_EQ(text(R"({"prompt": "hi", "max_tokens": 9, "seed": -2})"),
            text(R"({"prompt": "hi", "max_tokens": 9, "seed": 18446744073709551614})"));
}

TEST(HttpGenerationTest, ThePriorityIsTheSignOfANumber) {
  HttpApi server;
  for (const char* field :
       {R"("priority": -1)", R"("priority": -9223372036854775808)", R"("priority": 0)",
        R"("priority": 18446744073709551615)", R"("service_tier": "priority")",
        R"("service_tier": "default")", R"("service_tier": "flex")"}) {
    const std::string body = absl::StrCat(R"({"prompt": "a", "max_tokens": 1, )", field, "}");
    EXPECT_EQ(server.Ask(HttpPost("/v1/completions", body)).status, 200) << field;
  }
  const auto served = [&server](const char* priority) {
    return server.Metric(
        absl::StrCat(R"(aft_queue_seconds_count{method="Completions",model="fake",priority=")",
                     priority, "\"}"));
  };
  EXPECT_EQ(served("interactive"), 3);
  EXPECT_EQ(served("normal"), 2);
  EXPECT_EQ(served("batch"), 2);
}

// Returns what a chat's stream says about each of its answers: the role, and how it ended.
std::vector<std::string> RolesAndEnds(const HttpReply& stream, size_t n) {
  std::vector<std::string> of_choice(n);
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    const Json parsed = Json::parse(event);
    for (const Json& choice : parsed["choices"]) {
      std::string& facts = of_choice.at(choice["index"].get<size_t>());
      const Json& end = choice["finish_reason"];
      absl::StrAppend(&facts, choice["delta"].value("role", ""),
                      end.is_null() ? "" : absl::StrCat(" ", end.get<std::string>()));
    }
  }
  return of_choice;
}

// Load tools take the first event for the first token, whatever it contains.
TEST(HttpGenerationTest, TheRoleLeavesTogetherWithTheFirstToken) {
  HttpApi server(WithHttp(), Letters());
  Json body = Chat({{{"role", "user"}, {"content", "x"}}}, 3);
  body["stream"] = true;
  const TcpConnection connection(server.address());
  connection.Send(HttpPost("/v1/chat/completions", body.dump()));
  const std::string reply = connection.ReadAll();
  const absl::string_view chunks =
      absl::string_view(reply).substr(reply.find("\r\n\r\n") + 4);  // each is one message
  const size_t size = std::strtoul(chunks.data(), nullptr, 16);
  HttpReply first;
  first.body = std::string(chunks.substr(chunks.find("\r\n") + 2, size));
  ASSERT_GE(first.events().size(), 2U) << reply;
  EXPECT_EQ(Json::parse(first.events()[0])["choices"][0]["delta"]["role"], "assistant");
  EXPECT_NE(Json::parse(first.events()[1])["choices"][0]["delta"]["content"], "");
}

TEST(HttpGenerationTest, AChatThatFailsBeforeItsFirstTokenHasTheStatusOfItsError) {
  HttpApi server;
  Json body = Chat({{{"role", "user"}, {"content", std::string(150, 'x')}}}, 3);  // three steps
  body["stream"] = true;
  server.control().Hold();
  const TcpConnection connection(server.address());
  connection.Send(HttpPost("/v1/chat/completions", body.dump()));
  server.control().RunSteps(1);
  server.control().FailNext(FakeCall::kCollect);
  server.control().Resume();
  EXPECT_EQ(ParseReply(connection.ReadAll()).status, 500);
}

TEST(HttpGenerationTest, EachAnswerOfAChatHasItsRoleOnceAndFirst) {
  for (const bool ends_at_once : {false, true}) {
    FakeModelRunner::Options model = Letters();
    if (ends_at_once) {
      model.next_token = [](uint64_t /*hash*/, int64_t /*count*/) { return FakeTokenizer::kEos; };
    }
    HttpApi server(WithHttp(), model);
    for (const size_t n : {size_t{1}, size_t{3}}) {
      for (const bool usage : {false, true}) {
        Json body = Chat({{{"role", "user"}, {"content", "x"}}}, 3);
        body.update({{"n", n}, {"stream", true}, {"stream_options", {{"include_usage", usage}}}});
        const HttpReply stream = server.Post("/v1/chat/completions", body);
        EXPECT_EQ(stream.status, 200) << stream.body;
        EXPECT_THAT(RolesAndEnds(stream, n),
                    Each(Eq(ends_at_once ? "assistant stop" : "assistant length")));
        const Json first = Json::parse(stream.events().front());
        ASSERT_EQ(first["choices"].size(), n) << first;
        EXPECT_EQ(first.contains("usage"), usage);
        EXPECT_EQ(Json::parse(stream.events().end()[-2])["choices"].empty(), usage);
      }
    }
  }
}

}  // namespace
}  // namespace aft::server
