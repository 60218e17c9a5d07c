// Tests aftload --http: how it reads answers that are cut at any place and end in any way, and runs
// against the real server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "client/aftload/http_events.h"
#include "tests/integration/http/fixture.h"
#include "tests/support/certificates.h"
#include "tests/support/tcp.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/process.h"

namespace aft::client {
namespace {

using testing::HasSubstr;

std::string TextEvent(const std::string& text) {
  return absl::StrCat(R"(data: {"choices": [{"index": 0, "text": ")", text, "\"}]}\n\n");
}
constexpr char kUsage[] =
    "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 7}}\n\n";
constexpr char kDone[] = "data: [DONE]\n\n";
constexpr char kError[] =
    "data: {\"error\": {\"message\": \"too slow\", \"code\": \"rate_limit_exceeded\"}}\n\n";
std::string WholeStream() {
  return absl::StrCat(TextEvent("ab"), TextEvent(""), TextEvent("c"), kUsage, kDone);
}

// Returns the texts and usages of a stream in the order of its events, and how it ended.
std::string ReadEvents(const std::vector<std::string>& parts) {
  std::string read;
  EventReader reader;
  for (const std::string& part : parts) {
    reader.Feed(part, [&](const v1::GenerateResponse& event) {
      if (event.has_delta()) absl::StrAppend(&read, event.delta().text(), " ");
      const v1::Usage& usage = event.finished().usage();
      if (event.has_finished()) {
        absl::StrAppend(&read, usage.prompt_tokens(), "+", usage.generated_tokens(), " ");
      }
    });
  }
  return absl::StrCat(read, absl::StatusCodeToString(reader.End().code()));
}

TEST(EventReaderTest, ReadsAStreamWhereverItIsCut) {
  const std::string unix_lines = ": a comment\nid: 1\n" + WholeStream();
  std::string lines = unix_lines;
  for (size_t i = 0; (i = lines.find('\n', i)) != std::string::npos; i += 2) lines.insert(i, "\r");
  for (const std::string& stream : {unix_lines, lines}) {
    for (size_t cut = 0; cut <= stream.size(); ++cut) {
      ASSERT_EQ(ReadEvents({stream.substr(0, cut), stream.substr(cut)}), "ab c 5+7 OK") << cut;
    }
  }
}

// Our server's events with no more than text are read without parsing all of their JSON.
TEST(EventReaderTest, ReadsCompactEventsAsItReadsOthers) {
  const auto event = [](const std::string& choice, const std::string& more = ",\"usage\":null") {
    return absl::StrCat(R"(data: {"id":"a","choices":[{"index":0,"text":")", choice, "}]", more,
                        "}\n\n");
  };
  const std::string usage = R"(,"usage":{"prompt_tokens":5,"completion_tokens":7})";
  EXPECT_EQ(ReadEvents({event("ab\",\"finish_reason\":null"), event("\""), event("c\""), kDone}),
            "ab c DATA_LOSS");
  EXPECT_EQ(ReadEvents({event(R"(\",\"text\":\"a")"), event(R"(\u0062")"), kUsage, kDone}),
            R"(","text":"a b 5+7 OK)");
  EXPECT_EQ(ReadEvents({event("ab\"", usage), kDone}), "ab 5+7 OK");
  EXPECT_EQ(ReadEvents({event("ab\"", R"(,"error":{"code":"unavailable"})")}), "ab UNAVAILABLE");
  EXPECT_EQ(ReadEvents({"data: {\"choices\":[{\"index\":0,\"text\":\"a\n\n"}), "DATA_LOSS");
}

TEST(EventReaderTest, SaysHowAStreamEnded) {
  const std::string text = TextEvent("a");
  EXPECT_EQ(ReadEvents({}), "DATA_LOSS");
  EXPECT_EQ(ReadEvents({text + kUsage}), "a 5+7 DATA_LOSS");
  EXPECT_EQ(ReadEvents({text + kDone}), "a DATA_LOSS");
  EXPECT_EQ(ReadEvents({kUsage, "data: [DONE]\n"}), "5+7 DATA_LOSS");
  EXPECT_EQ(ReadEvents({"data: x\n\n", text, kUsage, kDone}), "DATA_LOSS");
  EXPECT_EQ(ReadEvents({text, kError, text}), "a RESOURCE_EXHAUSTED");
}

TEST(EventReaderTest, ErrorAnswersHaveACode) {
  const auto code = [](int http, const char* body) { return HttpStatus(http, body, {}).code(); };
  EXPECT_EQ(code(429, "[]"), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(400, R"({"error": {"code": "unsupported"}})"),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(400, R"({"error": {"code": null}})"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(503, "no JSON"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(302, ""), absl::StatusCode::kUnknown);
  for (const auto& [http, name, want] :
       {std::tuple(401, "invalid_api_key", absl::StatusCode::kUnauthenticated),
        {403, "permission_denied", absl::StatusCode::kPermissionDenied},
        {404, "model_not_found", absl::StatusCode::kNotFound},
        {499, "cancelled", absl::StatusCode::kCancelled},
        {500, "internal_error", absl::StatusCode::kInternal},
        {504, "deadline_exceeded", absl::StatusCode::kDeadlineExceeded}}) {
    EXPECT_EQ(code(http, ""), want);
    EXPECT_EQ(code(0, absl::StrCat(R"({"error": {"code": ")", name, "\"}}").c_str()), want);
  }
}

// Answers requests, one connection after the other. Sends an answer a byte at a time, or at once if
// it has more than kLong bytes.
class ScriptedHttp : public BoundPort {
 public:
  static constexpr size_t kLong = 1 << 20;
  struct Answer {
    std::string text;
    bool close = false;  // closes the connection after the answer
  };
  using Script = std::function<Answer(int number, const std::string& request)>;

  explicit ScriptedHttp(Script script) : script_(std::move(script)) {
    AFT_CHECK(listen(fd(), 8) == 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~ScriptedHttp() {
    shutdown(fd(), SHUT_RDWR);
    thread_.join();
  }

 private:
  static std::string Request(int from) {
    std::string text;
    size_t size = std::string::npos;
    for (char c = 0; text.size() < size && recv(from, &c, 1, 0) == 1;) {
      text += c;
      if (size != std::string::npos || !absl::EndsWith(text, "\r\n\r\n")) continue;
      const size_t length = text.find("Content-Length: ") + 16;
      int bytes = 0;
      AFT_CHECK(absl::SimpleAtoi(text.substr(length, text.find('\r', length) - length), &bytes));
      size = text.size() + static_cast<size_t>(bytes);
    }
    return text;
  }
  void Run() {
    int number = 0;
    for (int from = -1; (from = accept(fd(), nullptr, nullptr)) >= 0; close(from)) {
      const int on = 1;
      setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      for (std::string text = Request(from); !text.empty(); text = Request(from)) {
        const Answer answer = script_(++number, text);
        const size_t step = answer.text.size() > kLong ? answer.text.size() : 1;
        for (size_t i = 0; i < answer.text.size(); i += step) {
          send(from, answer.text.data() + i, step, MSG_NOSIGNAL);
        }
        if (answer.close) break;
      }
    }
  }

  const Script script_;
  std::thread thread_;
};

// An answer in chunks of seven bytes. Without the last chunk, the answer has not ended.
std::string Chunked(const std::string& body, bool last = true) {
  std::string text =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (size_t i = 0; i < body.size(); i += 7) {
    const std::string part = body.substr(i, 7);
    absl::StrAppend(&text, part.size(), "\r\n", part, "\r\n");
  }
  return last ? text + "0\r\n\r\n" : text;
}

std::string Refused(const std::string& header) {
  const std::string body = R"({"error": {"message": "full", "code": "rate_limit_exceeded"}})";
  return absl::StrCat("HTTP/1.1 429 Too Many Requests\r\n", header,
                      "\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

nlohmann::json RunHttpLoad(const std::string& address, std::vector<std::string> arguments,
                           int exit_code = 0) {
  arguments.insert(arguments.begin(), {AFTLOAD, "--json", "--http", "--address", address});
  const Ended ended = RunToEnd(arguments);
  EXPECT_EQ(ended.code, exit_code) << ended.err;
  return nlohmann::json::parse(ended.out);
}

TEST(HttpLoadTest, SendsTheGivenLoadAndCountsAsTheServerDoes) {
  std::vector<std::string> requests;
  ScriptedHttp server([&](int /*number*/, const std::string& request) {
    requests.push_back(request);
    return ScriptedHttp::Answer{Chunked(WholeStream())};
  });
  const TempFolder folder;
  std::ofstream(folder.File("token")) << "secret\n";
  const auto report =
      RunHttpLoad(server.address(), {"--requests", "3", "--max-tokens", "7", "--model", "austen",
                                     "--prompt", "It is", "--token-file", folder.File("token")});
  EXPECT_EQ(report["completed"], 3);
  EXPECT_EQ(report["total_output_tokens"], 21);
  EXPECT_EQ(report["total_input_tokens"], 15);
  EXPECT_EQ(report["count_ttft"], 3);
  EXPECT_EQ(report["count_itl"], 3);  // an event without text is not counted
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_THAT(requests[0], testing::StartsWith(absl::StrCat(
                               "POST /v1/completions HTTP/1.1\r\nHost: ", server.address())));
  EXPECT_THAT(requests[0], HasSubstr("\r\nAuthorization: Bearer secret\r\n"));
  const auto body = nlohmann::json::parse(requests[2].substr(requests[2].find("\r\n\r\n")));
  EXPECT_EQ(body, nlohmann::json({{"model", "austen"},
                                  {"prompt", "It is"},
                                  {"max_tokens", 7},
                                  {"ignore_eos", true},
                                  {"seed", 3},
                                  {"stream", true},
                                  {"stream_options", {{"include_usage", true}}}}));
}

TEST(HttpLoadTest, SendsRefusedRequestsAgainWhenTheAnswerSays) {
  ScriptedHttp server([](int number, const std::string& /*request*/) {
    return ScriptedHttp::Answer{number == 1 ? Refused("Retry-After: 0") : Chunked(WholeStream())};
  });
  const auto report = RunHttpLoad(server.address(), {"--requests", "2"});
  EXPECT_EQ(report["completed"], 2);
  EXPECT_EQ(report["refused"], 1);
  EXPECT_EQ(report["retried"], 1);
  // If there is a retry-after-ms, it counts, because it is more exact than Retry-After.
  ScriptedHttp later([](int /*number*/, const std::string& /*request*/) {
    return ScriptedHttp::Answer{Refused("retry-after-ms: 3600000\r\nRetry-After: 0")};
  });
  // A time that fits into no clock counts as a day.
  ScriptedHttp never([](int /*number*/, const std::string& /*request*/) {
    return ScriptedHttp::Answer{Refused("Retry-After: 9223372036854775807")};
  });
  for (const ScriptedHttp* const server_to_wait_for : {&later, &never}) {
    nlohmann::json waits;
    do {  // on a slow machine the run may be over before the refusal comes
      waits = RunHttpLoad(server_to_wait_for->address(), {"--rate", "1000", "--requests", "1",
                                                          "--duration", "0.5", "--drain", "0.5"});
      EXPECT_EQ(waits["cut"], 1);
    } while (waits["refused"] == 0);
    EXPECT_EQ(waits["refused"], 1);
  }
}

TEST(HttpLoadTest, ARequestThatTheServerDoesNotWantAgainIsNoRefusal) {
  int requests = 0;
  {
    ScriptedHttp server([&](int number, const std::string& /*request*/) {
      requests = number;
      return ScriptedHttp::Answer{Refused("x-should-retry: false")};
    });
    const auto report = RunHttpLoad(server.address(), {"--requests", "1"}, 1);
    EXPECT_EQ(report["errors"], nlohmann::json({{"RESOURCE_EXHAUSTED", 1}}));
    EXPECT_EQ(report["refused"], 0);
    EXPECT_EQ(report["retried"], 0);
  }
  EXPECT_EQ(requests, 1);
}

TEST(HttpLoadTest, DeadlinesAndSlowReadersAreCountedApart) {
  ScriptedHttp stalled([](int /*number*/, const std::string& /*request*/) {
    return ScriptedHttp::Answer{Chunked(TextEvent("a"), /*last=*/false)};
  });
  const auto expired = RunHttpLoad(stalled.address(), {"--requests", "1", "--deadline-share", "1",
                                                       "--deadline-ms", "5", "--duration", "20"});
  EXPECT_EQ(expired["others"]["deadline"]["expired"], 1);
  // A client that does not read does not see that the connection breaks.
  ScriptedHttp broken([](int /*number*/, const std::string& /*request*/) {
    return ScriptedHttp::Answer{Chunked(TextEvent("a"), /*last=*/false), /*close=*/true};
  });
  const auto slow = RunHttpLoad(broken.address(),
                                {"--slow-share", "1", "--slow-ms", "3600000", "--duration", "0.3"});
  EXPECT_EQ(slow["others"]["slow"]["cut"], 1);
  EXPECT_EQ(slow["others"]["slow"]["failed"], 0);
}

TEST(HttpLoadTest, ASlowReaderPausesForEachEventThatArrived) {
  std::string events;
  for (int i = 0; i < 10; ++i) absl::StrAppend(&events, TextEvent("a"));
  ScriptedHttp server([&](int /*number*/, const std::string& /*request*/) {
    return ScriptedHttp::Answer{Chunked(absl::StrCat(events, kUsage, kDone))};
  });
  const auto report =
      RunHttpLoad(server.address(), {"--slow-share", "1", "--slow-ms", "40", "--requests", "1"});
  EXPECT_EQ(report["others"]["slow"]["completed"], 1);
  EXPECT_GE(report["duration"], 0.4);
}

TEST(HttpLoadTest, AnswersThatBreakOrEndWrongAreCountedByCode) {
  const std::string text = TextEvent("a");
  for (const auto& [answer, close, code] : std::vector<std::tuple<std::string, bool, const char*>>{
           {Chunked(text, /*last=*/false), true, "UNAVAILABLE"},
           {Chunked(text + kUsage), false, "DATA_LOSS"},
           {Chunked(text + kError), false, "RESOURCE_EXHAUSTED"},
           {"what is this?\r\n\r\n", true, "UNAVAILABLE"},
           {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", false, "DATA_LOSS"}}) {
    ScriptedHttp server([answer = answer, close = close](int number, const std::string&) {
      return number == 1 ? ScriptedHttp::Answer{answer, close}
                         : ScriptedHttp::Answer{Chunked(WholeStream())};
    });
    const auto report = RunHttpLoad(server.address(), {"--requests", "2"}, 1);
    EXPECT_EQ(report["errors"], nlohmann::json({{code, 1}})) << answer;
    EXPECT_EQ(report["completed"], 1);
    EXPECT_EQ(report["refused"], 0);  // a begun request is not sent again
  }
}

TEST(HttpLoadTest, AnIdleConnectionThatTheServerClosesIsNoError) {
  ScriptedHttp server([](int /*number*/, const std::string& /*request*/) {
    return ScriptedHttp::Answer{Chunked(WholeStream()), /*close=*/true};
  });
  const auto report = RunHttpLoad(server.address(), {"--requests", "4"});
  EXPECT_EQ(report["completed"], 4);
  EXPECT_EQ(report["refused"], 0);
}

TEST(HttpLoadTest, ANewConnectionThatIsClosedUnansweredIsAnError) {
  ScriptedHttp server([](int number, const std::string& /*request*/) {
    return number <= 2 ? ScriptedHttp::Answer{"", /*close=*/true}
                       : ScriptedHttp::Answer{Chunked(WholeStream())};
  });
  const auto report = RunHttpLoad(server.address(), {"--requests", "1"}, 1);
  EXPECT_EQ(report["errors"], nlohmann::json({{"UNAVAILABLE", 1}}));
}

// As servers of HTTP/1.0 answer.
TEST(HttpLoadTest, AnAnswerMayEndWithItsConnection) {
  ScriptedHttp server([](int /*number*/, const std::string& /*request*/) {
    return ScriptedHttp::Answer{"HTTP/1.1 200 OK\r\n\r\n" + WholeStream(), /*close=*/true};
  });
  EXPECT_EQ(RunHttpLoad(server.address(), {"--requests", "2"})["completed"], 2);
}

TEST(HttpLoadTest, AnAnswerMayHaveAnyLength) {
  std::string body;
  for (int i = 0; i < 9; ++i) body += TextEvent(std::string(1 << 20, 'a'));
  absl::StrAppend(&body, kUsage, kDone);
  ScriptedHttp server([&](int /*number*/, const std::string& /*request*/) {
    return ScriptedHttp::Answer{
        absl::StrCat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n", body)};
  });
  EXPECT_EQ(RunHttpLoad(server.address(), {"--requests", "1"})["completed"], 1);
}

TEST(HttpLoadTest, MeasuresTheRealServerAsOverGrpc) {
  server::HttpApi server;
  const std::vector<std::string> load = {"--requests",     "12", "--streams",    "3",
                                         "--warmup",       "2",  "--max-tokens", "9",
                                         "--prompt-bytes", "11"};
  const auto report = RunHttpLoad(server.address(), load);
  std::vector<std::string> command = {AFTLOAD, "--json", "--address", server.server().address()};
  command.insert(command.end(), load.begin(), load.end());
  const auto grpc = nlohmann::json::parse(RunToEnd(command).out);
  for (const char* name : {"completed", "failed", "refused", "cut", "total_input_tokens",
                           "total_output_tokens", "max_concurrent_requests", "count_e2el"}) {
    EXPECT_EQ(report[name], grpc[name]) << name;
  }
  EXPECT_EQ(report["total_output_tokens"], 108);
  const auto none = RunHttpLoad(server.address(), {"--model", "none", "--requests", "1"}, 1);
  EXPECT_EQ(none["errors"], nlohmann::json({{"NOT_FOUND", 1}}));
}

// The client library writes this sentence, so aftctl shows it too.
constexpr char kHttpPort[] =
    "it is an HTTP port; use the address of gRPC, by default 127.0.0.1:8500";

TEST(HttpLoadTest, WithoutHttpSaysThatItIsAnHttpPort) {
  server::HttpApi server;
  EXPECT_THAT(RunToEnd({AFTLOAD, "--address", server.address(), "--requests", "1"}).err,
              HasSubstr(kHttpPort));
}

TEST(HttpLoadTest, SpeaksTlsAndChecksTheServersName) {
  const TempFolder folder;
  const Certificate authority = MakeAuthority("authority");
  const Certificate server_certificate = MakeCertificate(authority, "server", "IP:127.0.0.1");
  const Certificate client = MakeCertificate(authority, "me");
  const std::vector<std::pair<const char*, std::string>> files = {
      {"ca", authority.certificate},
      {"other", MakeAuthority("other").certificate},
      {"cert", server_certificate.certificate},
      {"key", server_certificate.key},
      {"mine", client.certificate},
      {"mine.key", client.key}};
  for (const auto& [name, text] : files) std::ofstream(folder.File(name)) << text;
  server::ServerConfig config = server::WithHttp();
  config.security.tls.cert_file = folder.File("cert");
  config.security.tls.key_file = folder.File("key");
  config.security.tls.client_ca_file = folder.File("ca");
  server::HttpApi server(config);
  const std::vector<std::string> tls = {
      "--tls",     "--cert", folder.File("mine"), "--key", folder.File("mine.key"),
      "--streams", "3",      "--requests",        "9"};
  std::vector<std::string> good = tls;
  good.insert(good.end(), {"--ca", folder.File("ca")});
  EXPECT_EQ(RunHttpLoad(server.address(), good)["completed"], 9);
  // Without --ca the authorities are those of the system.
  std::vector<std::string> without = {AFTLOAD, "--http", "--address", server.address()};
  without.insert(without.end(), tls.begin(), tls.end());
  EXPECT_EQ(RunToEnd(without, "", {"SSL_CERT_FILE=" + folder.File("ca")}).code, 0);
  std::vector<std::string> bad = {AFTLOAD,          "--http", "--address",
                                  server.address(), "--ca",   folder.File("other")};
  bad.insert(bad.end(), tls.begin(), tls.end());
  EXPECT_THAT(RunToEnd(bad).err, HasSubstr("certificate verify failed"));
  // The certificate is for another name.
  bad[3] = "localhost" + server.address().substr(server.address().rfind(':'));
  bad[5] = folder.File("ca");
  EXPECT_THAT(RunToEnd(bad).err, HasSubstr("certificate verify failed"));
  bad[5] = folder.File("key");
  const Ended no_certificate = RunToEnd(bad);
  EXPECT_EQ(no_certificate.code, 2);
  EXPECT_THAT(no_certificate.err, HasSubstr("TLS: "));
  bad[5] = folder.File("ca");
  bad.erase(bad.begin() + 1);  // --http
  EXPECT_THAT(RunToEnd(bad).err, HasSubstr(kHttpPort));
  EXPECT_THAT(RunToEnd({AFTLOAD, "--address", server.address(), "--requests", "1"}).err,
              HasSubstr("does it expect TLS"));
}

// A port that reads the first bytes of a connection, and closes it.
class HangUpPort : public BoundPort {
 public:
  // Returns what aftload sends first when it connects to this port of `host` with TLS.
  std::string FirstBytes(const std::string& host) const {
    AFT_CHECK(listen(fd(), 8) == 0);
    Process aftload({AFTLOAD, "--http", "--tls", "--address", absl::StrCat(host, ":", port())});
    std::string bytes(4096, '\0');
    ssize_t size = 0;
    if (aftload.WaitForEvents(fd(), POLLIN)) {  // otherwise it has ended without connecting
      const int connection = accept(fd(), nullptr, nullptr);
      size = recv(connection, bytes.data(), bytes.size(), 0);
      close(connection);
    }
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
    EXPECT_EQ(aftload.Wait(), 3) << aftload.err();
    return bytes;
  }
};

// A proxy chooses the certificate by this name, which is sent in the clear.
TEST(HttpLoadTest, TlsAnnouncesANameAndNoAddress) {
  const HangUpPort port;
  EXPECT_THAT(port.FirstBytes("localhost"), HasSubstr("localhost"));
  const std::string bytes = port.FirstBytes("127.0.0.1");
  EXPECT_FALSE(bytes.empty());
  EXPECT_THAT(bytes, testing::Not(HasSubstr("127.0.0.1")));
}

TEST(HttpLoadTest, AnInterruptCancelsRunningRequests) {
  server::HttpApi server;
  Process aftload({AFTLOAD, "--http", "--address", server.address(), "--streams", "3",
                   "--max-tokens", "1000000"});
  server.WaitForMetric("aft_requests_running", 3);
  aftload.Signal(SIGINT);
  EXPECT_EQ(aftload.Wait(), 130);
  EXPECT_THAT(aftload.out(), HasSubstr("0 completed, 3 cut"));
  server.WaitForMetric("aft_requests_running", 0);
}

TEST(HttpLoadTest, RefusesFlagsAndAddressesThatHttpDoesNotSupport) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--connections", "2"}, {"--resume"}, {"--verify", "3"}, {"--cancel-share", "1"}}) {
    std::vector<std::string> command = {AFTLOAD, "--http"};
    command.insert(command.end(), flags.begin(), flags.end());
    const Ended ended = RunToEnd(command);
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.err, HasSubstr(flags[0]));
  }
  for (const std::string address : {"unix:/run/aft.sock", "ipv4:127.0.0.1:1,127.0.0.1:2"}) {
    const Ended ended = RunToEnd({AFTLOAD, "--http", "--address", address});
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.err, HasSubstr("is not HOST:PORT"));
  }
  const ClosedPort port;
  const Ended unreachable = RunToEnd({AFTLOAD, "--http", "--address", port.address()});
  EXPECT_EQ(unreachable.code, 3);
  EXPECT_THAT(unreachable.err, HasSubstr("Connection refused"));
  // This is an address also where IPv6 is not available.
  const Ended brackets = RunToEnd({AFTLOAD, "--http", "--address", "[::1]:1"});
  EXPECT_EQ(brackets.code, 3);
  EXPECT_THAT(brackets.err, testing::Not(HasSubstr("Host not found")));
}

}  // namespace
}  // namespace aft::client
