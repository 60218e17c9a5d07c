// The memory that requests over HTTP are charged for in addition to their bodies.
#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/api/openai/responses_exchange.h"
#include "server/call/exchange.h"
#include "server/engine/request.h"
#include "tests/integration/http/fixture.h"
#include "tests/support/captured_log.h"
#include "tests/support/short_memory.h"
#include "tests/support/tcp.h"

namespace aft::server {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kUsed[] = "aft_memory_used_bytes";

// The bytes that are allocated on the heap. They are about 0 under a sanitizer.
double HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}

// A response that repeats 8 KiB of the request.
Json WithMetadata() {
  Json body = {{"input", "x"}, {"max_output_tokens", 1}};
  for (int i = 0; i < 16; ++i) body["metadata"][absl::StrCat(i)] = std::string(512, 'm');
  return body;
}

// Each answer has a copy of the ids of its prompt, and each event of a response that repeats the
// fields of the request has a copy of them.
TEST(HttpMemoryTest, CopiesAreCharged) {
  HttpApi server;
  server.control().Hold();
  const Json prompts = {{"prompt", std::vector<std::string>(2, std::string(10'000, 'p'))},
                        {"n", 2},
                        {"max_tokens", 1}};
  Json response = WithMetadata();
  response["store"] = false;
  double least = 0;
  std::vector<TcpConnection> connections;
  const size_t copies = 2 * (2 + 1) * 10'000 * sizeof(TokenId);
  for (const auto& [path, body, bytes] :
       {std::tuple("/v1/completions", prompts, copies + 3 * kSequenceBytes),
        std::tuple("/v1/responses", response, size_t{8 * 16 * 512})}) {
    connections.emplace_back(server.address()).Send(HttpPost(path, body.dump()));
    least += kCall + static_cast<double>(bytes);
    if (connections.size() == 1) {
      server.control().WaitUntilBlocked();
    } else {  // the other three answers wait, too
      server.WaitForMetric("aft_requests_waiting{model=\"fake\"}", 4);
    }
    EXPECT_GE(server.Metric(kUsed), least) << path;
  }
  server.control().Resume();
  for (const TcpConnection& one : connections) EXPECT_EQ(ParseReply(one.ReadAll()).status, 200);
  server.WaitForMetric(kUsed, 0);
}

// The buffer for a part of a body is larger than the one for a head.
TEST(HttpMemoryTest, ARunningRequestKeepsNoBufferForItsBody) {
  constexpr size_t kRequests = 20;
  HttpApi server;
  const std::string body = R"({"prompt": "x", "max_tokens": 1})";
  const std::string request = HttpPost("/v1/completions", body, "Expect: 100-continue\r\n");
  const std::string head = request.substr(0, request.size() - body.size());
  const auto held = [&](bool in_two_parts) {
    server.control().Hold();
    const double before = HeapBytes();
    std::vector<TcpConnection> connections;
    for (size_t i = 0; i < kRequests; ++i) {
      const TcpConnection& connection = connections.emplace_back(server.address());
      connection.Send(in_two_parts ? head : request);
      if (in_two_parts) {
        connection.ReadTo("\r\n\r\n");  // 100 Continue: the head was read
        connection.Send(body);
      }
      if (i == 0) server.control().WaitUntilBlocked();  // the others wait
    }
    server.WaitForMetric("aft_requests_waiting{model=\"fake\"}", kRequests - 1);
    const double bytes = HeapBytes() - before;
    server.control().Resume();
    for (const TcpConnection& one : connections) EXPECT_EQ(ParseReply(one.ReadAll()).status, 200);
    server.WaitForMetric(kUsed, 0);
    return bytes;
  };
  const double whole = held(/*in_two_parts=*/false);
  EXPECT_LT(held(/*in_two_parts=*/true) - whole, kRequests * 16'000.0);
}

TEST(HttpMemoryTest, EachTextToEncodeIsCharged) {
  HttpApi server(WithHttp(TestConfigWithEncoder()));
  server.encoder_control().Hold();
  const TcpConnection connection(server.address());
  const Json body = {{"model", "encoder"}, {"input", {"a", "b", "c", "d"}}};
  connection.Send(HttpPost("/v1/embeddings", body.dump()));
  server.encoder_control().WaitUntilBlocked();
  EXPECT_GE(server.Metric(kUsed), kCall + static_cast<double>(3 * kSequenceBytes));
  server.encoder_control().Resume();
  EXPECT_EQ(ParseReply(connection.ReadAll()).status, 200);
  server.WaitForMetric(kUsed, 0);
}

// A float becomes up to 24 bytes of the answer.
TEST(HttpMemoryTest, EmbeddingsThatAreNotReadAreChargedAndKeptOnlyOnce) {
  FakeEncoderRunner::Options options;
  options.width = 400'000;   // the answer is larger than what sockets hold
  options.normalize = true;  // most numbers have 17 digits
  HttpApi server(WithHttp(TestConfigWithEncoder()), {}, options);
  const Json body = {{"model", "encoder"}, {"input", "a"}};
  const auto answer = static_cast<double>(server.Post("/v1/embeddings", body).body.size());
  server.WaitForMetric(kUsed, 0);
  const double before = HeapBytes();
  {
    const TcpConnection connection(server.address(), /*receive_buffer=*/4096);
    connection.Send(HttpPost("/v1/embeddings", body.dump()));
    server.WaitForMetric(RequestsTotal("OK", "Embeddings", "encoder"), 2);
    EXPECT_EQ(server.Get("/v1/models").status, 200);  // from the thread that has made the answer
    EXPECT_LT(HeapBytes() - before, 2 * answer);
    EXPECT_GE(server.Metric(kUsed), kCall + answer);
  }
  server.WaitForMetric(kUsed, 0);
}

// A control character becomes six bytes of JSON in each of the answers.
TEST(HttpMemoryTest, EachCopyOfAPromptThatIsRepeatedIsCharged) {
  HttpApi server;
  server.control().Hold();
  const TcpConnection connection(server.address());
  const Json body = {
      {"prompt", std::string(20'000, '\x01')}, {"n", 4}, {"max_tokens", 1}, {"echo", true}};
  connection.Send(HttpPost("/v1/completions", body.dump()));
  server.control().WaitUntilBlocked();
  EXPECT_GE(server.Metric(kUsed), kCall + 4.0 * 6 * 20'000);
  server.control().Resume();
  EXPECT_EQ(ParseReply(connection.ReadAll()).status, 200);
}

// Each answer repeats the log-probabilities of the prompt, which wait only once.
TEST(HttpMemoryTest, EachCopyOfThePromptsLogProbabilitiesIsCharged) {
  HttpApi server;
  const Json body = {{"prompt", std::string(4'000, 'p')},
                     {"n", 4},
                     {"max_tokens", 1},
                     {"seed", 1},
                     {"echo", true},
                     {"logprobs", 20}};
  const auto answer = static_cast<double>(server.Post("/v1/completions", body).body.size());
  EXPECT_GT(answer, 4e6);  // more than what sockets hold
  server.WaitForMetric(kUsed, 0);
  {
    const TcpConnection connection(server.address(), /*receive_buffer=*/4096);
    connection.Send(HttpPost("/v1/completions", body.dump()));
    server.WaitForMetric(RequestsTotal("OK", "Completions"), 2);
    EXPECT_GE(server.Metric(kUsed), kCall + answer);
  }
  server.WaitForMetric(kUsed, 0);
}

// The answer is larger than anything that the call allocates before it.
TEST(HttpMemoryTest, ACallWithoutMemoryForItsAnswerIsReportedOnce) {
  FakeEncoderRunner::Options options;
  options.width = 4'000;
  options.normalize = true;  // most numbers have 17 digits
  HttpApi server(WithHttp(TestConfigWithEncoder()), {}, options);
  const CapturedLog log;
  const TcpConnection connection(server.address());
  {
    const ShortMemory none(40'000);
    connection.Send(HttpPost("/v1/embeddings", Json{{"model", "encoder"}, {"input", "a"}}.dump()));
    EXPECT_EQ(ParseReply(connection.ReadAll()).status, 429);
  }
  const std::vector<LogLine> lines = log.Lines("request.done");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["code"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(server.Metric(RequestsTotal("RESOURCE_EXHAUSTED", "Embeddings", "encoder")), 1);
}

// Each attempt has memory for one more large block, the last of which is the copy that is sent.
TEST(HttpMemoryTest, ACallWithoutMemoryForTheCopyToSendEndsWithItsConnection) {
  FakeEncoderRunner::Options options;
  options.width = 4'000;
  options.normalize = true;  // most numbers have 17 digits
  HttpApi server(WithHttp(TestConfigWithEncoder()), {}, options);
  const std::string request =
      HttpPost("/v1/embeddings", Json{{"model", "encoder"}, {"input", "a"}}.dump());
  std::set<int> answers;  // 0: the connection ended without one
  for (int left = 0; answers.count(200) == 0; ++left) {
    ASSERT_LT(left, 100);
    const TcpConnection connection(server.address());
    const ShortMemory none(40'000, left);
    connection.Send(request);
    answers.insert(ParseReply(connection.ReadTo("\r\n\r\n")).status);
  }
  EXPECT_THAT(answers, Contains(0));
  server.WaitForMetric(kUsed, 0);
}

// A control character becomes six bytes of JSON.
TEST(HttpMemoryTest, TheEscapesOfAResponseAreCharged) {
  constexpr size_t kText = 10'000;
  openai::ResponsesExchange exchange("id");
  TokenDelta delta;
  delta.text = std::string(kText, '\x01');
  exchange.Append(std::move(delta), /*sequence=*/0);
  const size_t charged = exchange.held_bytes();
  EXPECT_TRUE(exchange.Finish(Outcome(), /*stored=*/nullptr));
  EXPECT_GE(charged, kText + exchange.text().size());
}

// The page and the copy that is being sent.
TEST(HttpMemoryTest, AStoredResponseIsReadOnlyIfThereIsRoom) {
  constexpr size_t kBudget = 1'000'000;
  ServerConfig config = WithHttp();
  config.limits.max_memory_bytes = config.limits.max_client_memory_bytes = kBudget;
  HttpApi server(config);
  const Json stored = server.Post("/v1/responses", WithMetadata()).json();
  const std::string path = absl::StrCat("/v1/responses/", stored["id"].get<std::string>());
  {
    const TcpConnection holds(server.address());  // all but 10 kB, for a body that does not come
    const size_t body = (kBudget - kCall - 10'000) / 2;
    holds.Send(HttpPost("/v1/completions", std::string(body, 'x')).substr(0, 150));
    server.WaitForMetric(kUsed, static_cast<double>(kCall + 2 * body));
    const HttpReply refused = server.Get(path);
    EXPECT_EQ(refused.status, 429);
    EXPECT_THAT(refused.body, HasSubstr("memory: "));
    EXPECT_THAT(refused.head, HasSubstr("retry-after-ms: 100\r\n"));  // the shortest one
    EXPECT_THAT(refused.head, HasSubstr("Retry-After: 1\r\n"));       // rounded up
    EXPECT_THAT(refused.head, Not(HasSubstr("x-should-retry")));
  }
  server.WaitForMetric(kUsed, 0);
  EXPECT_EQ(server.Get(path).json(), stored);
}

}  // namespace
}  // namespace aft::server
