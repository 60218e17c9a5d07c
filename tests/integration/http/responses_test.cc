// /v1/responses: turns that continue from states, compared with Complete over gRPC, with a fake
// model.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/lib/aft_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/http/fixture.h"
#include "tests/integration/known_clients.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kResponses[] = "/v1/responses";

std::string TextOverGrpc(HttpApi& server, const std::string& text, uint32_t tokens,
                         const std::string& stop = "") {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_stop()->set_max_tokens(tokens);
  if (!stop.empty()) request.mutable_stop()->add_strings(stop);
  return server.OverGrpc(request).answers(0).text();
}

std::string TextOf(const Json& response) {
  const Json& item = response.at("output").at(0);
  EXPECT_EQ(item["role"], "assistant");
  EXPECT_EQ(item["status"], response["status"]);
  return item["content"].at(0)["text"];
}

Json Turn(const Json& input, const Json& previous = nullptr) {
  return {{"model", "fake"},
          {"input", input},
          {"max_output_tokens", 7},
          {"previous_response_id", previous}};
}

TEST(HttpResponsesTest, ATurnReadsOnlyNewText) {
  HttpApi server(WithHttp(), Letters());
  Json body = Turn("a");
  body["instructions"] = "be brief";
  const int64_t before = UnixSeconds();
  const Json first = server.Post(kResponses, body).json();
  const std::string text = "be brief\n\na\n\n";
  const std::string answer = TextOverGrpc(server, text, 7);
  EXPECT_EQ(TextOf(first), answer);
  EXPECT_EQ(first["object"], "response");
  EXPECT_GE(first["created_at"].get<int64_t>(), before);
  EXPECT_LE(first["created_at"].get<int64_t>(), UnixSeconds());
  EXPECT_EQ(first["status"], "incomplete");
  EXPECT_EQ(first["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(first["instructions"], "be brief");
  EXPECT_EQ(first["store"], true);
  EXPECT_EQ(first["usage"]["input_tokens"], text.size());

  // Two turns continue from the first one and do not affect each other.
  for (const char* input : {"b", "c"}) {
    const Json second = server.Post(kResponses, Turn(input, first["id"])).json();
    EXPECT_EQ(TextOf(second), TextOverGrpc(server, text + answer + "\n\n" + input + "\n\n", 7));
    EXPECT_EQ(second["usage"]["input_tokens"], std::string("\n\nb\n\n").size());
    EXPECT_EQ(second["previous_response_id"], first["id"]);
    EXPECT_EQ(second["instructions"], "be brief");
  }
  // One request with the messages of all roles is equivalent to the turns.
  const Json whole = Json::array({{{"role", "system"}, {"content", "be brief"}},
                                  {{"role", "user"}, {"content", "a"}},
                                  {{"type", "message"},
                                   {"role", "assistant"},
                                   {"id", "msg_1"},
                                   {"status", "completed"},
                                   {"content", {{{"type", "output_text"}, {"text", answer}}}}},
                                  {{"role", "user"}, {"content", "b"}}});
  EXPECT_EQ(TextOf(server.Post(kResponses, Turn(whole)).json()),
            TextOf(server.Post(kResponses, Turn("b", first["id"])).json()));
}

// OpenAI's SDK gives this type to the texts of a user.
TEST(HttpResponsesTest, TheInputMayHavePartsOfInputText) {
  HttpApi server(WithHttp(), Letters());
  Json message = {{"role", "user"}};
  message["content"][0] = {{"type", "input_text"}, {"text", "a"}};
  const HttpReply reply = server.Post(kResponses, Turn(Json::array({message})));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(TextOf(reply.json()), TextOverGrpc(server, "a\n\n", 7));
}

// The instructions of a continuation are not read again, so they do not count for its length.
TEST(HttpResponsesTest, AContinuationMayRepeatItsInstructions) {
  ServerConfig config = WithHttp();
  config.limits.max_prompt_bytes = 100;
  HttpApi server(config, Letters());
  Json body = Turn("a");
  body["instructions"] = std::string(70, 'i');
  const Json first = server.Post(kResponses, body).json();
  body["input"] = std::string(60, 'b');
  body["previous_response_id"] = first["id"];
  const HttpReply second = server.Post(kResponses, body);
  ASSERT_EQ(second.status, 200) << second.body;
  EXPECT_EQ(second.json()["usage"]["input_tokens"], 64);
}

TEST(HttpResponsesTest, AResponseRepeatsItsOptionsAndCountsTokens) {
  HttpApi server(WithHttp(), Letters());
  Json body = Turn(std::string(300, 's'));
  body["temperature"] = 0.7;
  body["top_p"] = 0.9999999;
  Json response;
  for (int i = 0; i < 3; ++i) response = server.Post(kResponses, body).json();
  EXPECT_EQ(response["temperature"], 0.7);
  EXPECT_EQ(response["top_p"], 0.9999999);
  // OpenAI's schema requires some of these fields, so typed clients need them.
  const Json fixed = {{"text", {{"format", {{"type", "text"}}}}},
                      {"parallel_tool_calls", false},
                      {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                      {"tool_choice", "none"},
                      {"tools", Json::array()},
                      {"truncation", "disabled"}};
  for (const auto& [name, value] : fixed.items()) {
    ASSERT_TRUE(response.contains(name)) << name;
    EXPECT_EQ(response[name], value) << name;
  }
  const Json& usage = response["usage"];
  EXPECT_EQ(usage["output_tokens"], 7);
  EXPECT_EQ(usage["total_tokens"], 302 + 7);
  const int cached = usage["input_tokens_details"]["cached_tokens"];
  EXPECT_GT(cached, 7);
  EXPECT_LT(cached, 302);
}

TEST(HttpResponsesTest, AStateOfAnotherModelIsRefusedByName) {
  const TempFolder folder;
  ServerConfig config = WithHttp();
  UseStateFolder(folder, config);
  FakeModelRunner::Options options = Letters();
  const Json first = HttpApi(config, options).Post(kResponses, Turn("a")).json();
  options.fingerprint = 2;
  const HttpReply refused = HttpApi(config, options).Post(kResponses, Turn("b", first["id"]));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "previous_response_id") << refused.body;
}

// A stop string is a part of the text that it ends, so the next turn must not repeat it.
TEST(HttpResponsesTest, ATurnContinuesAfterTheStopStringOfTheLastOne) {
  ServerConfig config = WithHttp();
  config.models[0].chat_template = "custom";
  ChatFormat& format = config.models[0].chat_format;
  format.user_prefix = "<";
  format.user_suffix = ">";
  format.assistant_suffix = "ee|";
  format.answer = "A:";
  format.stop = {"e"};
  FakeModelRunner::Options options;
  options.next_token = [](uint64_t hash, int64_t count) {
    return static_cast<TokenId>(count % 8 == 7 ? 'e' : 'f' + hash % 20);
  };
  HttpApi server(config, options);
  Json body = Turn("x");
  body["max_output_tokens"] = 40;
  const Json first = server.Post(kResponses, body).json();
  EXPECT_EQ(first["status"], "completed");
  EXPECT_EQ(first["incomplete_details"], nullptr);
  const std::string answer = TextOverGrpc(server, "<x>A:", 40, "e");
  EXPECT_EQ(TextOf(first), answer);
  body["stream"] = true;
  const Json last = Json::parse(server.Post(kResponses, body).events().back());
  EXPECT_EQ(last["type"], "response.completed");
  EXPECT_EQ(last["response"]["status"], "completed");
  body = Turn("y", first["id"]);
  EXPECT_EQ(TextOf(server.Post(kResponses, body).json()),
            TextOverGrpc(server, "<x>A:" + answer + "ee|<y>A:", 7, "e"));
}

TEST(HttpResponsesTest, AStreamsEventsAreInOrder) {
  HttpApi server(WithHttp(), Letters());
  Json body = Turn("a");
  body["metadata"] = {{"key", "value"}};
  body["stream"] = true;
  const HttpReply reply = server.Post(kResponses, body);
  EXPECT_THAT(reply.head, AllOf(HasSubstr("Content-Type: text/event-stream; charset=utf-8\r\n"),
                                HasSubstr("X-Accel-Buffering: no\r\n")));
  std::vector<std::string> types;
  int events = 0;
  std::string text;
  Json last;
  for (const auto part : absl::StrSplit(reply.body, "\n\n", absl::SkipEmpty())) {
    const std::pair<std::string, std::string> lines =
        absl::StrSplit(part, absl::MaxSplits('\n', 1));
    last = Json::parse(lines.second.substr(6));
    EXPECT_EQ(lines.first, "event: " + last["type"].get<std::string>());
    EXPECT_EQ(last["sequence_number"], events++);
    if (last["type"] == "response.output_text.delta") {
      text += last["delta"];
    } else {
      types.push_back(last["type"]);
    }
  }
  EXPECT_THAT(types, ElementsAre("response.created", "response.in_progress",
                                 "response.output_item.added", "response.content_part.added",
                                 "response.output_text.done", "response.content_part.done",
                                 "response.output_item.done", "response.incomplete"));
  EXPECT_EQ(text, TextOverGrpc(server, "a\n\n", 7));
  EXPECT_EQ(TextOf(last["response"]), text);
  EXPECT_EQ(last["response"]["metadata"]["key"], "value");
  // The first event has the id under which the response is later stored.
  EXPECT_THAT(reply.body, HasSubstr("event: response.created\ndata: {\"type\":\"response.created\","
                                    "\"sequence_number\":0,\"response\":{\"id\":\"" +
                                    last["response"]["id"].get<std::string>()));
  EXPECT_EQ(
      server.Get(std::string(kResponses) + "/" + last["response"]["id"].get<std::string>()).json(),
      last["response"]);
}

TEST(HttpResponsesTest, AStreamThatFailsEndsWithAnErrorEvent) {
  HttpApi server(WithHttp(), Letters());
  server.control().Hold();
  Json body = Turn("a");
  body["stream"] = true;
  const TcpConnection connection(server.address());
  connection.Send(HttpPost(kResponses, body.dump()));
  server.control().AllowSteps(3);
  const std::string begin = connection.ReadTo("\"logprobs\":[]}\n\n\r\n");  // a delta's end
  server.control().FailNext(FakeCall::kCollect, absl::InternalError("secret"));
  server.control().Resume();
  const HttpReply reply = ParseReply(begin + connection.ReadAll());
  const std::vector<std::string> events = reply.events();
  const Json last = Json::parse(events.back());
  EXPECT_THAT(begin, HasSubstr("event: response.output_text.delta"));
  EXPECT_THAT(reply.body, HasSubstr("\n\nevent: error\ndata: {\"type\":\"error\","));
  EXPECT_EQ(last["sequence_number"], events.size() - 1);
  EXPECT_EQ(last["code"], "internal_error");
  EXPECT_THAT(last["message"].get<std::string>(), StartsWith("internal error; request id"));
  EXPECT_EQ(last["param"], nullptr);
  for (const char* name : {"code", "message", "param"}) {
    EXPECT_EQ(last["error"][name], last[name]);
  }
}

TEST(HttpResponsesTest, OnlyItsClientReadsAndDeletesAStoredResponse) {
  const TempFolder folder;
  WriteBytes(folder.File("clients"),
             ClientEntry("a", "aa", "models: 'fake'") + ClientEntry("b", "bb", "models: 'fake'"));
  ServerConfig config = WithHttp();
  config.security.clients_file = folder.File("clients");
  HttpApi server(config, Letters());
  const std::string as_a = "Authorization: Bearer aa\r\n";
  const std::string as_b = "Authorization: Bearer bb\r\n";
  const Json response = server.Post(kResponses, Turn("x"), as_a).json();
  const std::string path = std::string(kResponses) + "/" + response["id"].get<std::string>();
  const std::string remove =
      "DELETE " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
  EXPECT_EQ(server.Get(path, as_a).json(), response);
  const HttpReply stranger = server.Get(path, as_b);
  EXPECT_EQ(stranger.status, 404);
  EXPECT_THAT(stranger.json()["error"]["message"].get<std::string>(), StartsWith("Response with"));
  EXPECT_EQ(server.Get(path).status, 401);
  EXPECT_EQ(server.Get(path, as_a + "Content-Length: 1\r\n").status, 400);
  EXPECT_EQ(server.Post(kResponses, Turn("y", response["id"]), as_b).status, 404);
  EXPECT_EQ(server.Ask(remove + as_b + "\r\n").status, 404);
  const HttpReply removed = server.Ask(remove + as_a + "\r\n");
  EXPECT_EQ(removed.json(),
            (Json{{"id", response["id"]}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(server.Get(path, as_a).status, 404);
  EXPECT_EQ(server.Post(kResponses, Turn("y", response["id"]), as_a).status, 404);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(HttpResponsesTest, NothingIsStoredIfUnwantedOrImpossible) {
  const auto stored = [](HttpApi& server, const Json& store) {
    Json body = Turn("a");
    body["store"] = store;
    const Json response = server.Post(kResponses, body).json();
    EXPECT_EQ(TextOf(response), TextOverGrpc(server, "a\n\n", 7));
    const std::string path = std::string(kResponses) + "/" + response["id"].get<std::string>();
    EXPECT_EQ(server.Get(path).status, response["store"] ? 200 : 404);
    return response["store"].get<bool>();
  };
  HttpApi keeps(WithHttp(), Letters());
  EXPECT_TRUE(stored(keeps, true));
  EXPECT_TRUE(stored(keeps, nullptr));
  EXPECT_FALSE(stored(keeps, false));
  ServerConfig config = WithHttp();
  config.states.max_bytes = 0;
  HttpApi none(config, Letters());
  EXPECT_FALSE(stored(none, nullptr));
  Json body = Turn("a");
  body["store"] = true;
  const HttpReply refused = none.Post(kResponses, body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], nullptr);  // no field is wrong
  config = WithHttp();
  config.states.max_bytes = 1024;  // too small for one state
  HttpApi full(config, Letters());
  EXPECT_FALSE(stored(full, nullptr));
  Json streamed = Turn("a");
  streamed["stream"] = true;
  EXPECT_THAT(full.Post(kResponses, streamed).body, Not(HasSubstr("\"store\":true")));
  const HttpReply too_large = full.Post(kResponses, body);
  EXPECT_EQ(too_large.status, 400);
  EXPECT_EQ(too_large.json()["error"]["param"], nullptr);
  config = WithHttp();
  const TempFolder folder;
  UseStateFolder(folder, config);
  HttpApi kept(config, Letters());
  EXPECT_TRUE(stored(kept, nullptr));
  std::filesystem::rename(config.states.folder, folder.File("away"));
  EXPECT_FALSE(stored(kept, nullptr));
  const HttpReply unavailable = kept.Post(kResponses, body);
  EXPECT_EQ(unavailable.status, 503);
  EXPECT_THAT(unavailable.head, HasSubstr("Retry-After: 1\r\n"));
}

// The room for a stored response is reserved before its text is known.
TEST(HttpResponsesTest, ALongAnswerWithSeveralBytesATokenIsStored) {
  FakeModelRunner::Options options;
  options.next_token = [](uint64_t /*hash*/, int64_t /*count*/) {
    return TokenId{0xFF};  // becomes U+FFFD, which has three bytes
  };
  HttpApi server(WithHttp(), options);
  Json body = Turn("a");
  body["max_output_tokens"] = 2000;
  const Json response = server.Post(kResponses, body).json();
  EXPECT_EQ(TextOf(response).size(), 3 * 2000U);
  EXPECT_EQ(response["store"], true);
  EXPECT_EQ(server.Get(absl::StrCat(kResponses, "/", response["id"].get<std::string>())).json(),
            response);
}

TEST(HttpResponsesTest, AStateIsDeletedWhenItsClientLeavesBeforeItHasTheAnswer) {
  ServerConfig config = WithHttp();
  config.models[0].max_step_tokens = 4096;
  HttpApi server(config, Letters());
  Json body = Turn("a");
  body["instructions"] = std::string(1'000'000, 'i');  // the answer repeats more than sockets hold
  {
    const TcpConnection leaves(server.address(), /*receive_buffer=*/4096);
    leaves.Send(HttpPost(kResponses, body.dump()));
    server.WaitForMetric(RequestsTotal("OK", "Responses"), 1);
    EXPECT_EQ(server.Metric("aft_states"), 1);
  }
  server.WaitForMetric("aft_states", 0);
}

TEST(HttpResponsesTest, AResponseIsAStateButAStateOfGrpcIsNoResponse) {
  HttpApi server(WithHttp(), Letters());
  v1::GenerateRequest request;
  request.set_text("a");
  request.mutable_stop()->set_max_tokens(2);
  request.mutable_store();
  const std::string id = "resp_" + server.OverGrpc(request).answers(0).finished().state().id();
  EXPECT_EQ(server.Post(kResponses, Turn("b", id)).status, 404);
  EXPECT_EQ(server.Get(std::string(kResponses) + "/" + id).status, 404);
  EXPECT_EQ(server
                .Ask("DELETE " + std::string(kResponses) + "/" + id +
                     " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                .status,
            404);
  EXPECT_EQ(server.Metric("aft_states"), 1);

  const Json first = server.Post(kResponses, Turn("a")).json();
  request.set_text("!");
  request.clear_store();
  request.mutable_previous()->set_state_id(first["id"].get<std::string>().substr(5));
  EXPECT_EQ(server.OverGrpc(request).answers(0).text(),
            TextOverGrpc(server, "a\n\n" + TextOf(first) + "!", 2));
}

// The note of its state is longer than the state itself.
TEST(HttpResponsesTest, AnExportedResponseCanBeImported) {
  HttpApi server(WithHttp(), Letters());
  Json body = Turn("a");
  body["instructions"] = std::string(100'000, 'i');
  const Json first = server.Post(kResponses, body).json();
  client::ClientOptions options;
  options.address = server.server().address();
  const auto client = client::Client::Create(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const auto bytes = (*client)->ExportState(first["id"].get<std::string>().substr(5));
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_GT(bytes->size(), 100'000);
  const auto imported = (*client)->ImportState("fake", *bytes);
  ASSERT_TRUE(imported.ok()) << imported.status();
  Json there = first;
  there["id"] = "resp_" + imported->id();
  EXPECT_EQ(server.Get(absl::StrCat(kResponses, "/resp_", imported->id())).json(), there);
  const HttpReply next = server.Post(kResponses, Turn("b", there["id"]));
  EXPECT_EQ(next.status, 200) << next.body;
}

TEST(HttpResponsesTest, ErrorsNameTheField) {
  HttpApi server(WithHttp(), Letters());
  const auto expect = [&](Json body, const char* param, const char* part, int status = 400) {
    const HttpReply reply = server.Post(kResponses, body);
    EXPECT_EQ(reply.status, status) << body << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], param == nullptr ? Json() : Json(param)) << body;
    EXPECT_THAT(reply.body, HasSubstr(part)) << body;
  };
  expect({{"model", "fake"}}, "input", "is missing");
  expect({{"input", 3}}, "input", "a list of one message or more");
  expect({{"input", {{{"role", "tool"}, {"content", "a"}}}}}, "input[0].role", "must be system");
  expect({{"input", "a"}, {"max_output_tokens", 0}}, "max_output_tokens", "must be in [1,");
  expect({{"input", "a"}, {"tools", {{{"type", "web_search"}}}}}, "tools", "not supported");
  expect({{"input", "a"}, {"text", {{"format", {{"type", "json_object"}}}}}}, "text",
         "supports only");
  expect({{"input", "a"}, {"background", true}}, "background", "is not supported");
  expect({{"input", "a"}, {"truncation", "auto"}}, "truncation", "is not supported");
  expect({{"input", "a"}, {"n", 2}}, "n", "is not supported");
  expect({{"input", "a"}, {"logprobs", 5}}, "logprobs", "is not supported");
  expect({{"input", "a"}, {"top_logprobs", 5}}, "top_logprobs", "is not supported");
  expect({{"input", "a"}, {"metadata", {{"a", 1}}}}, "metadata", "16 strings");
  expect({{"input", "a"}, {"metadata", {{std::string(65, 'k'), "v"}}}}, "metadata", "keys");
  expect({{"input", "a"}, {"metadata", {{"k", std::string(513, 'v')}}}}, "metadata", "512 bytes");
  Json most = Turn("a");
  most["text"] = {{"format", {{"type", "text"}}}};
  most["n"] = 1;
  most["top_logprobs"] = 0;  // as OpenAI's SDK sends it
  most["logprobs"] = false;
  for (int i = 0; i < 16; ++i) {
    most["metadata"][std::string(63, 'k') + static_cast<char>('a' + i)] = std::string(512, 'v');
  }
  EXPECT_EQ(server.Post(kResponses, most).json()["metadata"], most["metadata"]);
  most["metadata"]["k"] = "v";
  expect(most, "metadata", "at most 16");
  expect({{"input", "a"}, {"store", 1}}, "store", "true or false");
  expect({{"input", std::string(2'000'000, 'x')}}, "input", "must have at most");
  for (const std::string& id : {std::string("x"), std::string("resp_0"), std::string(5000, 'r'),
                                "resp_" + std::string(32, 'a')}) {
    expect(Turn("a", id), "previous_response_id", "", 404);
  }
  const Json first = server.Post(kResponses, Turn("a")).json();
  Json body = Turn("b", first["id"]);
  body["instructions"] = "others";
  const char* const invalid = R"(aft_rejected_total{model="fake",reason="invalid"})";
  const double before = server.Metric(invalid);
  expect(body, "instructions", "the model has read them");
  EXPECT_EQ(server.Metric(invalid), before + 1);
  const std::string stored = absl::StrCat(kResponses, "/", first["id"].get<std::string>());
  EXPECT_EQ(server.Get(stored + "?stream=false").status, 200);
  const HttpReply streamed = server.Get(stored + "?stream=true");
  EXPECT_EQ(streamed.status, 400);
  EXPECT_EQ(streamed.json()["error"]["param"], "stream");
  const HttpReply put = server.Ask(absl::StrCat("PUT ", kResponses, "/x HTTP/1.1\r\n",
                                                "Host: localhost\r\nConnection: close\r\n\r\n"));
  EXPECT_EQ(put.status, 405);
  EXPECT_THAT(put.head, HasSubstr("Allow: GET, HEAD, DELETE\r\n"));
}

}  // namespace
}  // namespace aft::server
