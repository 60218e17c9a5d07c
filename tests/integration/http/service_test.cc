// HTTP requests apart from generation: authentication, allowed origins and hosts, and limits.
// try_page_test.py tests the page at `/` in a browser.
#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/http/fixture.h"
#include "tests/integration/known_clients.h"
#include "tests/support/captured_log.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/short_memory.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const Json kAsk = {{"prompt", "x"}, {"max_tokens", 2}, {"seed", 1}};
constexpr char kPath[] = "/v1/completions";

std::string Bearer(const std::string& token) { return "Authorization: Bearer " + token + "\r\n"; }

TEST(HttpServiceTest, ListsModelsAndPaths) {
  HttpApi server(WithHttp(TestConfigWithEncoder()));
  const Json models = server.Get("/v1/models").json();
  EXPECT_EQ(models["object"], "list");
  ASSERT_EQ(models["data"].size(), 2U);
  EXPECT_NE(models["data"][0]["id"], models["data"][1]["id"]);
  EXPECT_EQ(server.Get("/v1/models/fake").json()["id"], "fake");
  EXPECT_EQ(server.Get("/v1/models/other").status, 404);
  while (server.Get("/health").status != 200) std::this_thread::yield();  // soon after loading
  EXPECT_TRUE(server.Get("/version").json().contains("version"));
  const HttpReply missing = server.Get("/v1/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_THAT(missing.body, HasSubstr("/v1/chat/completions"));
  const HttpReply get = server.Get(kPath);
  EXPECT_EQ(get.status, 405);
  EXPECT_THAT(get.head, HasSubstr("Allow: POST\r\n"));
  EXPECT_EQ(server.Post("/v1/models", kAsk).status, 405);
}

TEST(HttpServiceTest, ThePageRunsOnlyItsOwnScript) {
  HttpApi server;
  const HttpReply page = server.Get("/");
  const auto hash = [&page](const std::string& tag) {
    const size_t start = page.body.find("<" + tag + ">") + tag.size() + 2;
    const std::string text = page.body.substr(start, page.body.find("</" + tag + ">") - start);
    return "'sha256-" + absl::Base64Escape(absl::HexStringToBytes(Sha256(text))) + "'";
  };
  EXPECT_THAT(
      page.head,
      HasSubstr("Content-Security-Policy: default-src 'none'; connect-src 'self'; img-src data:; "
                "script-src " +
                hash("script") + "; style-src " + hash("style") +
                "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"));
  EXPECT_THAT(page.head, AllOf(HasSubstr("Content-Type: text/html; charset=utf-8\r\n"),
                               HasSubstr("X-Content-Type-Options: nosniff\r\n"),
                               HasSubstr("X-Frame-Options: DENY\r\n"),
                               HasSubstr("Referrer-Policy: no-referrer\r\n"),
                               HasSubstr("Vary: Accept-Encoding\r\n")));
  // The page loads nothing from another host and never inserts markup.
  for (const char* word : {"src=", "://", "innerHTML", "outerHTML", "insertAdjacent",
                           "document.write", "eval(", " style=", " onclick="}) {
    EXPECT_THAT(page.body, Not(HasSubstr(word)));
  }
  EXPECT_THAT(page.head, Not(HasSubstr("Content-Encoding")));
  const HttpReply packed = server.Get("/", "Accept-Encoding: gzip\r\n");
  EXPECT_THAT(packed.head, AllOf(HasSubstr("Content-Encoding: gzip\r\n"),
                                 HasSubstr("Vary: Accept-Encoding\r\n")));
  EXPECT_EQ(packed.body.substr(0, 2), "\x1f\x8b");
  EXPECT_LT(2 * packed.body.size(), page.body.size());
}

class KnownClientsTest : public testing::Test {
 protected:
  KnownClientsTest() {
    config_.security.clients_file = folder_.File("clients.textproto");
    Replace(config_.security.clients_file,
            ClientEntry("a", "token a") + ClientEntry("b", "token b", "models: 'other'"));
    server_ = std::make_unique<HttpApi>(config_);
  }

  const TempFolder folder_;
  ServerConfig config_ = WithHttp();
  std::unique_ptr<HttpApi> server_;
};

TEST_F(KnownClientsTest, BearerTokensAreApiKeys) {
  EXPECT_EQ(server_->Post(kPath, kAsk, Bearer("token a")).status, 200);
  const HttpReply none = server_->Post(kPath, kAsk);
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.json()["error"]["type"], "authentication_error");
  EXPECT_THAT(none.head, HasSubstr("WWW-Authenticate: Bearer\r\n"));
  EXPECT_EQ(server_->Post(kPath, kAsk, Bearer("token c")).status, 401);
  EXPECT_EQ(server_->Post(kPath, kAsk, Bearer("token a") + Bearer("token a")).status, 401);
  EXPECT_EQ(server_->Post(kPath, kAsk, Bearer("token b")).status, 403);
  EXPECT_EQ(server_->Get("/v1/models").status, 401);
  EXPECT_EQ(server_->Get("/v1/models", Bearer("token b")).json()["data"].size(), 0U);
  EXPECT_EQ(server_->Get("/health").status, 200);
  EXPECT_EQ(server_->Metric(RequestsTotal("UNAUTHENTICATED", "Completions", "")), 3);
}

TEST_F(KnownClientsTest, ARevokedTokenEndsItsStream) {
  Json body = kAsk;
  body["max_tokens"] = 100'000;
  body["ignore_eos"] = true;
  body["stream"] = true;
  for (const char* holder : {"", "c"}) {  // of the token, from now on
    server_->control().Hold();
    const TcpConnection connection(server_->address());
    connection.Send(HttpPost(kPath, body.dump(), Bearer("token a")));
    server_->control().WaitUntilBlocked();
    const std::string before = ReadBytes(config_.security.clients_file);
    Replace(config_.security.clients_file,
            ClientEntry("b", "token b") + (*holder == 0 ? "" : ClientEntry(holder, "token a")));
    ASSERT_TRUE(server_->server().Reload(config_).ok());
    server_->control().Resume();
    EXPECT_THAT(connection.ReadAll(), HasSubstr("invalid_api_key"));
    server_->WaitForMetric("aft_slots_used{model=\"fake\"}", 0);
    Replace(config_.security.clients_file, before);
    ASSERT_TRUE(server_->server().Reload(config_).ok());
  }
}

TEST_F(KnownClientsTest, ThePageNeedsNoTokenButObeysTheRulesOfOtherPaths) {
  EXPECT_EQ(server_->Get("/").status, 200);
  EXPECT_EQ(server_->Get("/", "Origin: http://evil.example\r\n").status, 403);
  const std::string head = " / HTTP/1.1\r\nConnection: close\r\nHost: ";
  EXPECT_EQ(server_->Ask("GET" + head + "evil.example\r\n\r\n").status, 403);
  EXPECT_EQ(server_->Ask("HEAD" + head + "localhost\r\n\r\n").body, "");
  const HttpReply post = server_->Post("/", kAsk, Bearer("token a"));
  EXPECT_EQ(post.status, 405);
  EXPECT_THAT(post.head, HasSubstr("Allow: GET, HEAD\r\n"));
}

// The head of the request has already identified its client.
TEST_F(KnownClientsTest, ATokenRevokedBeforeTheBodyArrivesIsRefused) {
  const std::string request = HttpPost(kPath, kAsk.dump(), Bearer("token a"));
  const size_t body = request.find("{");
  const TcpConnection connection(server_->address());
  connection.Send(request.substr(0, body));
  server_->WaitForMetric("aft_memory_used_bytes",
                         static_cast<double>(kCall + 2 * kAsk.dump().size()));
  Replace(config_.security.clients_file, ClientEntry("b", "token b"));
  ASSERT_TRUE(server_->server().Reload(config_).ok());
  connection.Send(request.substr(body));
  EXPECT_EQ(ParseReply(connection.ReadAll()).status, 401);
  EXPECT_EQ(server_->control().step_count(), 0);
  server_->WaitForMetric("aft_memory_used_bytes", 0);
}

// One user of a client has many waiting requests when another user's request arrives. `shares` is
// whether the client's users share its turns. Returns the ids of the requests in the order in which
// they end.
std::vector<std::string> EndsOf(const std::string& path, Json body, bool shares) {
  const TempFolder folder;
  ServerConfig config = WithHttp(TestConfigWithEncoder());
  config.models[0].slots = 1;
  config.models[1].max_batch_rows = 1;
  config.security.clients_file = folder.File("clients.textproto");
  Replace(config.security.clients_file,
          ClientEntry("a", "token a", shares ? "shares_by_user: true" : ""));
  const CapturedLog log;
  FakeModelRunner::Options options;
  options.slots = 1;
  HttpApi server(config, options);
  const std::string model = body["model"];
  StepGate& gate = model == "fake" ? static_cast<StepGate&>(server.control())
                                   : static_cast<StepGate&>(server.encoder_control());
  gate.Hold();
  std::vector<TcpConnection> connections;
  for (const char* id : {"flood-0", "flood-1", "flood-2", "flood-3", "quiet-0"}) {
    body["user"] = std::string(id, 5);
    connections.emplace_back(server.address())
        .Send(HttpPost(path, body.dump(),
                       absl::StrCat(Bearer("token a"), "X-Request-Id: ", id, "\r\n")));
    if (connections.size() == 1) gate.WaitUntilBlocked();
    server.WaitForMetric("aft_requests_waiting{model=\"" + model + "\"}",
                         static_cast<double>(connections.size() - 1));
  }
  gate.Resume();
  for (const TcpConnection& connection : connections) {
    EXPECT_EQ(ParseReply(connection.ReadAll()).status, 200);
  }
  std::vector<std::string> ids;
  for (const LogLine& line : log.Lines("request.done")) ids.push_back(line["id"]);
  return ids;
}

TEST(HttpServiceTest, UsersShareTheTurnsOfAClientIfConfigured) {
  const Json message = {{"role", "user"}, {"content", "x"}};
  const std::pair<const char*, Json> calls[] = {
      {"/v1/completions", {{"model", "fake"}, {"prompt", "x"}, {"n", 1}, {"max_tokens", 1}}},
      {"/v1/completions", {{"model", "fake"}, {"prompt", {"x"}}, {"max_tokens", 1}}},
      {"/v1/chat/completions",
       {{"model", "fake"}, {"messages", {message}}, {"max_completion_tokens", 1}}},
      {"/v1/responses",
       {{"model", "fake"}, {"input", "x"}, {"store", false}, {"max_output_tokens", 1}}},
      {"/v1/embeddings", {{"model", "fake"}, {"input", "x"}}},
      {"/v1/embeddings", {{"model", "encoder"}, {"input", "x"}}}};
  for (const auto& [path, body] : calls) {
    // The new user starts level with the other one, whose next request came first.
    EXPECT_THAT(EndsOf(path, body, /*shares=*/true),
                ElementsAre("flood-0", "flood-1", "quiet-0", "flood-2", "flood-3"))
        << path;
    EXPECT_THAT(EndsOf(path, body, /*shares=*/false),
                ElementsAre("flood-0", "flood-1", "flood-2", "flood-3", "quiet-0"))
        << path;
  }
}

TEST_F(KnownClientsTest, AUserIsAStringOfLimitedLength) {
  Replace(config_.security.clients_file,
          ClientEntry("a", "token a") + ClientEntry("b", "token b", "shares_by_user: true"));
  ASSERT_TRUE(server_->server().Reload(config_).ok());
  const Json input = {{"input", "x"}, {"max_output_tokens", 1}};
  for (const auto& [path, body] : {std::pair(kPath, kAsk), std::pair("/v1/responses", input)}) {
    for (const auto& [user, status] :
         {std::pair(Json(std::string(256, 'u')), 200), std::pair(Json(std::string(257, 'u')), 400),
          std::pair(Json(3), 400), std::pair(Json(), 200)}) {
      Json with_user = body;
      with_user["user"] = user;
      EXPECT_EQ(server_->Post(path, with_user, Bearer("token a")).status, 200);
      const HttpReply reply = server_->Post(path, with_user, Bearer("token b"));
      EXPECT_EQ(reply.status, status) << reply.body;
      if (status == 400) {
        EXPECT_EQ(reply.json()["error"]["param"], "user");
      }
    }
  }
}

TEST(HttpServiceTest, TheRequestsIdIsPartOfTheAnswersIdAndABadHeaderMakesNoRequest) {
  const CapturedLog log;
  HttpApi server;
  EXPECT_EQ(server.Post(kPath, kAsk, "X-Request-Id: mine\r\n").json()["id"], "cmpl-mine");
  EXPECT_EQ(server.Post(kPath, kAsk, "X-Request-Id: \x01\r\n").status, 400);
  const auto lines = log.Lines("request.done");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["method"], "Completions");
  EXPECT_EQ(lines[1]["method"], "HttpHead");
}

TEST(HttpServiceTest, ATrustedProxyNamesTheClientAndKeepsItsUsersApart) {
  const CapturedLog log;
  ServerConfig config = WithHttp();
  config.security.trusted_proxies = {"127.0.0.0/8"};
  HttpApi server(config);
  const Json ask = {{"prompt", std::string(300, 's')}, {"max_tokens", 2}};
  const auto cached = [&](const std::string& salt) {
    const HttpReply reply = server.Post(
        kPath, ask, "X-Forwarded-For: 6.6.6.6, 9.9.9.9\r\naft-cache-salt: " + salt + "\r\n");
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  for (const int tokens : {0, 0, 299}) EXPECT_EQ(cached("ann"), tokens);
  EXPECT_EQ(cached("bob"), 0);
  for (const char* two : {"X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 9.9.9.9\r\n",
                          "X-Forwarded-For: 9.9.9.9\r\nx-forwarded-for: 127.0.0.5\r\n"}) {
    EXPECT_EQ(server.Post(kPath, kAsk, two).status, 200);
  }
  const std::vector<LogLine> lines = log.Lines("request.done");
  EXPECT_EQ(lines.size(), 6U);
  for (const LogLine& line : lines) EXPECT_EQ(line["client"], "9.9.9.9");
  const std::string salt = "aft-cache-salt: ann\r\n";
  EXPECT_EQ(server.Post(kPath, kAsk, salt + salt).status, 400);
}

TEST(HttpServiceTest, OnlyAllowedOriginsAndHostsReachIt) {
  ServerConfig config = WithHttp();
  config.http.allow_origins = {"https://chat.example"};
  config.http.allowed_hosts = {"aft.example"};
  HttpApi server(config);
  const auto with_host = [&](const std::string& host) {
    return server.Ask("GET /v1/models HTTP/1.1\r\nConnection: close\r\nHost: " + host + "\r\n\r\n")
        .status;
  };
  for (const char* host : {"localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:5", "aft.example",
                           "10.0.0.7:8080", "[2001:db8::1]:80", ""}) {
    EXPECT_EQ(with_host(host), 200) << host;
  }
  for (const char* host :
       {"evil.example", "localhost.evil.example", "10.0.0.7.evil.example", "aft.example.evil"}) {
    EXPECT_EQ(with_host(host), 403) << host;
  }
  EXPECT_EQ(server.Ask("GET /version HTTP/1.0\r\n\r\n").status, 200);  // without a Host
  const HttpReply allowed = server.Post(kPath, kAsk, "Origin: https://chat.example\r\n");
  EXPECT_EQ(allowed.status, 200);
  EXPECT_THAT(allowed.head, HasSubstr("Access-Control-Allow-Origin: https://chat.example\r\n"));
  EXPECT_EQ(server.Post(kPath, kAsk, "Origin: http://localhost\r\n").status, 200);
  for (const char* origin : {"http://evil.example", "null", "https://chat.example.evil", "",
                             "http://10.0.0.7", "http://"}) {
    const HttpReply reply = server.Post(kPath, kAsk, std::string("Origin: ") + origin + "\r\n");
    EXPECT_EQ(reply.status, 403) << origin;
    EXPECT_THAT(reply.head, Not(HasSubstr("Access-Control"))) << origin;
  }
  const HttpReply preflight = server.Ask(
      "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example\r\n"
      "Connection: close\r\nAccess-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: openai-project,x-forwarded-for, X-Stainless-OS\r\n\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_THAT(preflight.head, Not(HasSubstr("Content-Length")));
  // The package `openai` of JavaScript sends headers of its own.
  EXPECT_THAT(preflight.head,
              HasSubstr("Access-Control-Allow-Headers: authorization, content-type, "
                        "user-agent, x-request-id, traceparent, openai-project, "
                        "X-Stainless-OS\r\n"));
  // A form on any web page may send this request without a preflight.
  const HttpReply form = server.Ask(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
      "Connection: close\r\nContent-Length: 15\r\n\r\n{\"prompt\": \"a\"}");
  EXPECT_EQ(form.status, 415);
  EXPECT_EQ(server
                .Ask("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     "Content-Type: application/json; charset=utf-8\r\n"
                     "Content-Length: 15\r\n\r\n{\"prompt\": \"a\"}")
                .status,
            200);
}

TEST(HttpServiceTest, HeadsThatNeverEndAreCountedAndLogged) {
  const CapturedLog log;
  ServerConfig config = WithHttp();
  config.limits.write_stall = std::chrono::seconds(1);
  HttpApi server(config);
  const TcpConnection slow(server.address());
  slow.Send("POST /v1/completions HTTP/1.1\r\nHost: local");
  EXPECT_EQ(ParseReply(slow.ReadAll()).status, 408);
  server.WaitForMetric(RequestsTotal("DEADLINE_EXCEEDED", "HttpHead", ""), 1);
  const HttpReply wrong = server.Ask("what is this?\r\n\r\n");
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(wrong.json()["error"]["message"], "the head is not valid HTTP");
  EXPECT_THAT(wrong.head, AllOf(HasSubstr("x-request-id: "), HasSubstr("traceparent: ")));
  server.WaitForMetric(RequestsTotal("INVALID_ARGUMENT", "HttpHead", ""), 1);
  EXPECT_EQ(server.Metric("aft_e2e_seconds_count{method=\"HttpHead\"}"), 0);
  std::vector<std::string> reasons;
  for (const LogLine& line : log.Lines("request.done")) {
    EXPECT_EQ(line["method"], "HttpHead");
    reasons.push_back(line["reason"]);
  }
  EXPECT_THAT(reasons, ElementsAre("the head came too slowly", "the head is not valid HTTP"));
}

TEST(HttpServiceTest, BodiesAreChargedBeforeTheyAreRead) {
  const CapturedLog log;
  ServerConfig config = WithHttp();
  config.limits.max_memory_bytes = 1 << 20;
  HttpApi server(config);
  HttpReply refused;
  {
    const TcpConnection holds(server.address());  // 400 of the client's 512 KiB
    holds.Send(HttpPost(kPath, std::string(200'000, 'x')).substr(0, 150));
    server.WaitForMetric("aft_memory_used_bytes", kCall + 2 * 200'000);
    refused = server.Ask(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 100000\r\n\r\n");
  }
  server.WaitForMetric("aft_memory_used_bytes", 0);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.head, AllOf(HasSubstr("Retry-After: "), HasSubstr("retry-after-ms: ")));
  EXPECT_EQ(refused.json()["error"]["type"], "rate_limit_error");
  EXPECT_THAT(refused.body, HasSubstr("memory: "));
  EXPECT_EQ(server.Post(kPath, kAsk).status, 200);
  const HttpReply large = server.Ask(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 4194305\r\n\r\n");
  EXPECT_EQ(large.status, 413);
  EXPECT_THAT(large.json()["error"]["message"], HasSubstr("limits.max_message_bytes"));
  EXPECT_THAT(large.head, HasSubstr("x-request-id: "));
  const HttpReply broken = server.Ask(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\nno\r\n");
  EXPECT_EQ(broken.status, 400);
  // All of these requests are counted and have a log line.
  EXPECT_EQ(server.Metric(R"(aft_requests_total{code="RESOURCE_EXHAUSTED",method="Completions"})"),
            2);
  EXPECT_EQ(server.Metric(R"(aft_requests_total{code="INVALID_ARGUMENT",method="Completions"})"),
            1);
  std::vector<std::string> reasons;
  for (const LogLine& line : log.Lines("request.done")) reasons.push_back(line["reason"]);
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("memory: "), "length", HasSubstr("max_message_bytes"),
                                   HasSubstr("not valid HTTP")));
  {
    const TcpConnection leaves(server.address());
    leaves.Send(HttpPost(kPath, std::string(100, 'x')).substr(0, 150));
    server.WaitForMetric("aft_memory_used_bytes", kCall + 2 * 100);
  }
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

// The second body is refused before it is parsed, and the third one before it is read.
TEST(HttpServiceTest, ABodyThatCanNeverFitIsABadRequest) {
  ServerConfig config = WithHttp();
  config.limits.max_client_memory_bytes = 4 << 20;
  HttpApi server(config);
  for (const auto& [bytes, status] :
       {std::pair(50'000, 200), std::pair(200'000, 400), std::pair(4'000'000, 400)}) {
    Json body = kAsk;
    body["user"] = std::string(static_cast<size_t>(bytes), 'u');
    const std::string request = HttpPost(kPath, body.dump());
    const HttpReply reply =
        server.Ask(bytes < 4'000'000 ? request : request.substr(0, request.find('{')));
    EXPECT_EQ(reply.status, status) << reply.body;
    if (status == 200) continue;
    EXPECT_THAT(reply.body, HasSubstr("the request would take "));
    EXPECT_THAT(reply.head, AllOf(Not(HasSubstr("Retry-After")), Not(HasSubstr("retry"))));
  }
  EXPECT_EQ(server.Metric("aft_memory_refused_total"), 0);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

// Each attempt has memory for one more large block. The destructor of a value of JSON would need
// one, and would end the process without it.
TEST(HttpServiceTest, AListWithoutMemoryEndsOnlyItsRequest) {
  HttpApi server;
  const std::pair<const char*, Json> requests[] = {
      {"/detokenize", {{"tokens", std::vector<int>(70'000, 'a')}}},
      {"/tokenize", {{"prompt", std::string(70'000, 'a')}}}};
  for (const auto& [path, body] : requests) {
    const std::string request = HttpPost(path, body.dump());
    int status = 429;
    for (int left = 0; status == 429; ++left) {
      ASSERT_LT(left, 100) << path;
      const TcpConnection connection(server.address());
      const ShortMemory none(1'000'000, left);
      connection.Send(request);
      status = ParseReply(connection.ReadAll()).status;
    }
    EXPECT_EQ(status, 200) << path;
  }
}

// Each attempt has memory for one more copy of a header that the call keeps.
TEST(HttpServiceTest, ARequestWithoutMemoryReleasesAll) {
  ServerConfig config = WithHttp();
  config.limits.write_stall = std::chrono::milliseconds(100);  // ends a head that failed
  HttpApi server(config);
  EXPECT_EQ(server.Post(kPath, kAsk).status, 200);  // the first one makes objects that all share
  const CapturedLog log;
  constexpr size_t kLong = 14'000;
  const std::string request =
      HttpPost(kPath, kAsk.dump(), "X-Forwarded-For: " + std::string(kLong, 'x') + "\r\n");
  std::set<int> answers;
  for (int left = 0; answers.count(200) == 0; ++left) {
    ASSERT_LT(left, 100);
    const TcpConnection connection(server.address());
    const ShortMemory none(kLong, left);
    connection.Send(request);
    const HttpReply reply = ParseReply(connection.ReadAll());
    if (reply.status == 429) {
      EXPECT_THAT(reply.head, HasSubstr("Retry-After: 1\r\n"));
    }
    answers.insert(reply.status);
  }
  EXPECT_THAT(answers, testing::Contains(429));
  const std::vector<LogLine> lines = log.Lines("request.done");
  const auto calls = std::count_if(lines.begin(), lines.end(), [](const LogLine& line) {
    return line["method"] == "Completions";  // not a head that failed
  });
  EXPECT_EQ(server.Metric(R"(aft_requests_total{code="RESOURCE_EXHAUSTED",method="Completions"})"),
            static_cast<double>(calls - 1));
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(HttpServiceTest, TheConfigIsChecked) {
  ServerConfig config = WithHttp();
  config.models[0].chat_template = "alpaca";
  EXPECT_THAT(std::string(Server::Create(config, FakeLoader(), {}).status().message()),
              HasSubstr("models[0].chat_template: must be one of"));
  for (const bool custom : {true, false}) {  // only one of the two is set
    config.models[0].chat_template = custom ? "custom" : "plain";
    config.models[0].chat_format.answer = custom ? "" : "A:";
    EXPECT_THAT(std::string(Server::Create(config, FakeLoader(), {}).status().message()),
                HasSubstr("models[0].chat_format: must be set if"));
  }
  config.models[0].chat_template = "custom";
  config.models[0].chat_format.stop = {""};
  EXPECT_THAT(std::string(Server::Create(config, FakeLoader(), {}).status().message()),
              HasSubstr("models[0].chat_format.stop: must have"));
  config.models[0].chat_format.stop.assign(17, "x");  // a request may have 16
  EXPECT_THAT(std::string(Server::Create(config, FakeLoader(), {}).status().message()),
              HasSubstr("models[0].chat_format.stop: must have at most 16"));
}

}  // namespace
}  // namespace aft::server
