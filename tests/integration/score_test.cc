// Score over real gRPC, with a fake model.
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/fake_tokenizer.h"

namespace aft::server {
namespace {

v1::ScoreRequest ScoreOf(const std::string& text) {
  v1::ScoreRequest request;
  request.set_model("fake");
  request.set_raw(text);
  return request;
}

// The scores are what the model gives the text when it runs alone.
void ExpectScores(const ScoreStream& stream, const std::string& text) {
  const std::vector<SampledToken> expected =
      FakeModelRunner::Score(*FakeTokenizer().Encode(text), 0);
  ASSERT_GE(stream.events.size(), 2U);
  EXPECT_EQ(stream.events.front().started().model(), "fake");
  EXPECT_EQ(stream.events.front().started().tokens(), text.size());
  size_t next = 0;
  double sum = 0;
  for (const v1::ScoreResponse& event : stream.events) {
    for (int i = 0; i < event.chunk().token_ids_size(); ++i, ++next) {
      ASSERT_LT(next, expected.size());
      EXPECT_EQ(event.chunk().token_ids(i), static_cast<uint32_t>(expected[next].id));
      EXPECT_EQ(event.chunk().logprobs(i).logprob(), expected[next].logprob);
      sum += expected[next].logprob;
    }
  }
  EXPECT_EQ(next, expected.size());
  const v1::ScoreFinished& finished = stream.events.back().finished();
  EXPECT_EQ(finished.scored_tokens(), text.size() - 1);
  EXPECT_EQ(finished.scored_bytes(), text.size() - 1);
  EXPECT_EQ(finished.logprob(), sum);
  const double perplexity =
      text.size() == 1 ? 0 : std::exp(-sum / static_cast<double>(text.size() - 1));
  EXPECT_DOUBLE_EQ(finished.perplexity(), perplexity);
  EXPECT_GE(finished.timings().total_us(), finished.timings().first_token_us());
}

std::string Text(size_t size, char first = 'a') {
  std::string text(size, first);
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(first + static_cast<char>(i % 13));
  return text;
}

TEST(ScoreTest, StreamsTheScoreOfEveryTokenButTheFirst) {
  TestServer server(TestConfigWithMetrics());
  const std::string text = Text(300);  // five steps
  ScoreStream stream(server.inference(), ScoreOf(text));
  const grpc::Status status = stream.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectScores(stream, text);
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "Score")), 1);
  EXPECT_EQ(server.Metric("aft_scored_tokens_total{model=\"fake\"}"), 299);
  EXPECT_EQ(server.Metric("aft_request_finished_total{model=\"fake\",reason=\"done\"}"), 1);
}

TEST(ScoreTest, ChunksComeAsStepsFinish) {
  TestServer server;
  server.control().Hold();
  ScoreStream stream(server.inference(), ScoreOf(Text(100)));
  ASSERT_TRUE(stream.Next());
  server.control().AllowSteps(1);
  ASSERT_TRUE(stream.Next());  // while the second step is held
  EXPECT_EQ(stream.events.back().chunk().token_ids_size(), 64);
  server.control().Resume();
  ASSERT_TRUE(stream.Finish().ok());
  ExpectScores(stream, Text(100));
}

TEST(ScoreTest, ManyScoresAndGenerationsAtOnceEqualSingleResults) {
  ServerConfig config = TestConfig();
  config.limits.max_queued_requests = 1000;
  TestServer server(config);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&server, t] {
      for (int i = 0; i < 8; ++i) {
        const std::string text =
            Text(static_cast<size_t>(1 + 37 * i + t), static_cast<char>('a' + t));
        if (t % 2 == 0) {
          ScoreStream stream(server.inference(), ScoreOf(text));
          EXPECT_TRUE(stream.Finish().ok());
          ExpectScores(stream, text);
        } else {
          const v1::GenerateRequest request = Request(text, 40);
          GenerateStream stream(server.inference(), request);
          EXPECT_TRUE(stream.Finish().ok());
          EXPECT_EQ(stream.tokens, Expected(request));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace aft::server
