// A real model whose slots pass to other requests in the middle of sequences, over real gRPC.

#include <chrono>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/api/load.h"
#include "tests/integration/server_fixture.h"

namespace aft::server {
namespace {

constexpr char kParks[] = "aft_parks_total{model=\"fake\"}";

ServerConfig OneSlot() {
  ServerConfig config = TestConfigWithMetrics();
  config.models[0].checkpoint_dir = "model/zoo/austen-aft-local";
  config.models[0].slots = 1;
  config.models[0].max_step_tokens = 32;
  config.models[0].intra_op_threads = 1;
  return config;
}

class ParkingTest : public testing::Test {
 protected:
  ParkingTest() {
    const absl::Status ready = server_.server().WaitReady();
    EXPECT_TRUE(ready.ok()) << ready;
  }

  // A request that takes the slot for a few tokens.
  void Interrupt() {
    v1::GenerateRequest request = Request("Emma", 3);
    request.set_priority(v1::PRIORITY_INTERACTIVE);
    GenerateStream stream(server_.inference(), request);
    EXPECT_TRUE(stream.Finish().ok());
  }

  // `run(length, interrupt)` must give the same result with and without an interruption. On a busy
  // machine a sequence may end before it is interrupted, so ever longer ones are tried.
  template <typename Run>
  void ExpectTheSame(const Run& run) {
    const auto nothing = [] {};
    for (uint32_t length = 1000; length <= 1'000'000; length *= 4) {
      const double before = server_.Metric(kParks);
      const auto parked = run(length, [&] {
        for (int i = 0; i < 3; ++i) Interrupt();
      });
      const double parks = server_.Metric(kParks) - before;
      if (parks == 0) continue;
      EXPECT_EQ(parked, run(length, nothing));
      EXPECT_EQ(server_.Metric("aft_resumes_total{model=\"fake\"}"), server_.Metric(kParks));
      EXPECT_EQ(server_.Metric("aft_requests_parked{model=\"fake\"}"), 0);
      return;
    }
    FAIL() << "nothing was parked";
  }

  TestServer server_{OneSlot(), LoadModel};
};

TEST_F(ParkingTest, ParkedGenerationsContinueWithTheSameTokens) {
  v1::GenerateRequest greedy = Request("It is a truth", 1);
  greedy.mutable_sampling()->set_temperature(0);
  v1::GenerateRequest sampled = Request("It is a truth", 1, /*seed=*/41);
  v1::SamplingOptions& sampling = *sampled.mutable_sampling();
  sampling.set_temperature(0.9F);
  sampling.set_top_p(0.95F);
  sampling.set_repetition_penalty(1.2F);
  sampling.set_preset("rwkv");  // its penalties decay
  for (v1::GenerateRequest* request : {&greedy, &sampled}) {
    request->set_priority(v1::PRIORITY_BATCH);
    ExpectTheSame([&](uint32_t length, const auto& interrupt) {
      request->mutable_stop()->set_max_tokens(length);
      GenerateStream stream(server_.inference(), *request);
      EXPECT_TRUE(stream.ReadUntil(v1::GenerateResponse::kDelta));
      interrupt();
      const grpc::Status status = stream.Finish();
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(stream.tokens.size(), length);
      return stream.tokens;
    });
  }
}

TEST_F(ParkingTest, AParkedTextGetsTheSameScores) {
  ExpectTheSame([&](uint32_t length, const auto& interrupt) {
    v1::ScoreRequest request;  // batch work is the default for Score
    for (uint32_t i = 0; i < length; ++i) request.mutable_text()->push_back("a truth "[i % 8]);
    ScoreStream stream(server_.inference(), request);
    EXPECT_TRUE(stream.ReadUntil(v1::ScoreResponse::kChunk));
    interrupt();
    const grpc::Status status = stream.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<float> scores;
    for (const v1::ScoreResponse& event : stream.events) {
      for (const v1::TokenLogprobs& token : event.chunk().logprobs()) {
        scores.push_back(token.logprob());
      }
    }
    EXPECT_EQ(scores.size(), length - 1);
    return scores;
  });
}

}  // namespace
}  // namespace aft::server
