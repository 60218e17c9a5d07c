// Several clients share a model, over real gRPC.
#include <chrono>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"

namespace aft::server {
namespace {

constexpr uint32_t kForever = 1'000'000'000;

std::string Gauge(const std::string& name) { return "aft_" + name + "{model=\"fake\"}"; }

// One client fills all four slots and its two places in the queue with endless streams.
class FairnessTest : public testing::Test {
 protected:
  FairnessTest() {
    for (int i = 0; i < 6; ++i) {
      greedy_.emplace_back(server_.inference(), Request("endless", kForever), From("10.0.0.1"));
    }
    server_.WaitForMetric(Gauge("requests_running"), 4);
    server_.WaitForMetric(Gauge("requests_waiting"), 2);
  }
  ~FairnessTest() override {
    // All of its streams run or wait again.
    server_.WaitForMetric(Gauge("requests_parked"), 0);
    server_.WaitForMetric(Gauge("requests_running"), 4);
    server_.WaitForMetric(Gauge("requests_waiting"), 2);
    for (GenerateStream& stream : greedy_) stream.context().TryCancel();
    for (GenerateStream& stream : greedy_) {
      EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
    }
    server_.WaitForMetric(Gauge("requests_parked"), 0);
    ExpectServes(server_);
  }

  static ServerConfig Config() {
    ServerConfig config = TestConfigWithMetrics();
    config.security.trusted_proxies = {"127.0.0.1"};
    config.limits.max_queued_requests = 4;
    config.limits.max_max_tokens = kForever;
    config.limits.max_stream_buffer_bytes = 1 << 30;  // no client reads the endless streams
    config.scheduling.age = std::chrono::milliseconds(1);
    return config;
  }

  TestServer server_{Config()};
  std::vector<GenerateStream> greedy_;
};

TEST_F(FairnessTest, AnotherClientIsServedAtOnce) {
  for (int i = 0; i < 5; ++i) {
    const v1::GenerateRequest request = Request("hello", 20);
    GenerateStream stream(server_.inference(), request, From("10.0.0.2"));
    const grpc::Status status = stream.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(stream.tokens, Expected(request));
  }
  EXPECT_GE(server_.Metric(Gauge("parks_total")), 1);
}

TEST_F(FairnessTest, AnotherClientsBatchWorkHasItsTurns) {
  v1::ScoreRequest request;
  request.set_text(std::string(100, 'x'));
  ScoreStream stream(server_.inference(), request, From("10.0.0.2"));
  const grpc::Status status = stream.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(stream.event().finished().scored_tokens(), 99);
}

}  // namespace
}  // namespace aft::server
