// The load generator's parts, and aftload as a process.
#include "client/aftload/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/aftload/histogram.h"
#include "client/aftload/stream_recorder.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/process.h"
#include "tests/unit/client/tcp_gate.h"

namespace aft::client {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using testing::AllOf;
using testing::HasSubstr;

TEST(HistogramTest, QuantilesAreRightToTwoPercentOverTheWholeRange) {
  for (const int64_t unit : {1L, 63L, 64L, 100L, 1'000'003L, 3'600'000'000'000L}) {
    Histogram histogram;
    for (int64_t i = 1; i <= 1000; ++i) histogram.Add(nanoseconds(i * unit));
    for (const double q : {0.001, 0.5, 0.9, 0.99, 1.0}) {
      const double exact = q * 1000 * static_cast<double>(unit) / 1e9;
      EXPECT_NEAR(histogram.Quantile(q), exact, exact * 0.02) << unit << " " << q;
    }
    EXPECT_NEAR(histogram.Mean(), 500.5 * static_cast<double>(unit) / 1e9,
                1e-9 * static_cast<double>(unit));
  }
}

TEST(HistogramTest, TakesTheSmallestAndTheLargestValue) {
  Histogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  histogram.Add(nanoseconds(-5));
  EXPECT_EQ(histogram.Quantile(1), 0);
  histogram.Add(nanoseconds::max());
  EXPECT_NEAR(histogram.Quantile(1), 9.22e9, 0.2e9);
}

TEST(HistogramTest, MergesAndWeighs) {
  Histogram a, b, both;
  a.Add(milliseconds(1), 3);
  b.Add(milliseconds(9));
  both.Merge(a);
  both.Merge(b);
  EXPECT_EQ(both.count(), 4u);
  EXPECT_NEAR(both.Mean(), 0.003, 1e-9);
  EXPECT_NEAR(both.Quantile(0.75), 0.001, 0.00002);
  EXPECT_NEAR(both.Quantile(1), 0.009, 0.0002);
}

TEST(ScheduleTest, AnOpenLoopKeepsItsRateAndIsReproducible) {
  LoadOptions options;
  options.rate = 100;
  options.requests = 10'000;
  options.duration = hours(1);
  options.seed = 3;
  Schedule first(options, {}), second(options, {});
  Clock::time_point last;
  for (uint64_t i = 0; i < options.requests; ++i) {
    const auto slot = first.Next();
    ASSERT_TRUE(slot.has_value());
    EXPECT_EQ(slot->index, i);
    EXPECT_GE(slot->time, last);
    EXPECT_EQ(slot->time, second.Next()->time);
    last = slot->time;
  }
  EXPECT_FALSE(first.Next().has_value());
  // 10,000 arrivals at 100/s: 100 s, standard deviation 1 s.
  EXPECT_NEAR(std::chrono::duration<double>(last.time_since_epoch()).count(), 100, 5);
}

TEST(ScheduleTest, NothingIsScheduledAfterTheEnd) {
  LoadOptions options;
  options.rate = 1000;
  options.requests = 1'000'000;
  options.duration = milliseconds(500);
  Schedule open(options, {});
  uint64_t count = 0;
  while (const auto slot = open.Next()) {
    EXPECT_LT(slot->time, Clock::time_point(milliseconds(500)));
    ++count;
  }
  EXPECT_GT(count, 300u);
  EXPECT_LT(count, 700u);
  options.rate = 0;
  Schedule closed(options, Clock::now() - options.duration);
  EXPECT_FALSE(closed.Next().has_value());
}

TEST(StreamRecorderTest, MeasuresFromTheScheduledTimeAndSharesAGapAmongItsTokens) {
  LoadStats stats;
  const Clock::time_point t0;
  StreamRecorder recorder(5, t0, stats);
  recorder.OnTokens(1, t0 + milliseconds(10));
  recorder.OnTokens(4, t0 + milliseconds(18));
  recorder.OnCompleted(t0 + milliseconds(20));
  EXPECT_EQ(stats.tokens, 5u);
  EXPECT_EQ(stats.completed, 1u);
  EXPECT_EQ(stats.inter_token.count(), 4u);
  EXPECT_NEAR(stats.first_token.Mean(), 0.010, 1e-9);
  EXPECT_NEAR(stats.inter_token.Mean(), 0.002, 1e-9);
  EXPECT_NEAR(stats.stream_token.Mean(), 0.002, 1e-9);
  EXPECT_NEAR(stats.request.Mean(), 0.020, 1e-9);
}

TEST(StreamRecorderTest, ComparesTheFirstAndTheLastTenth) {
  LoadStats stats;
  Clock::time_point now;
  StreamRecorder recorder(100, now, stats);
  for (int i = 0; i < 100; ++i) {
    now += milliseconds(i < 50 ? 1 : 3);
    recorder.OnTokens(1, now);
  }
  recorder.OnCompleted(now);
  EXPECT_NEAR(stats.early.SecondsPerToken(), 0.001, 1e-9);
  EXPECT_NEAR(stats.late.SecondsPerToken(), 0.003, 1e-9);
  EXPECT_EQ(stats.early.tokens, 9u);  // the gaps after the first delta
  EXPECT_EQ(stats.late.tokens, 10u);
}

TEST(StreamRecorderTest, LeavesStreamsThatEndEarlyOutOfTheComparison) {
  LoadStats stats;
  Clock::time_point now;
  StreamRecorder recorder(100, now, stats);
  for (int i = 0; i < 95; ++i) recorder.OnTokens(1, now += milliseconds(1));
  recorder.OnCompleted(now);
  EXPECT_EQ(stats.early.tokens, 0u);
  EXPECT_EQ(stats.late.tokens, 0u);
}

class AftloadTest : public testing::Test {
 protected:
  std::vector<std::string> Command(const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {AFTLOAD, "--address", server_.address()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  nlohmann::json RunJson(std::vector<std::string> arguments, int exit_code) {
    arguments.push_back("--json");
    const Ended ended = RunToEnd(Command(arguments));
    EXPECT_EQ(ended.code, exit_code) << ended.err;
    return nlohmann::json::parse(ended.out);
  }

  FakeServer server_;
};

TEST_F(AftloadTest, AClosedLoopSendsWhatWasAskedAndReports) {
  server_.SetScript(TextScript({"ab", "cd", "ef"}));
  const auto report =
      RunJson({"--streams", "4", "--connections", "2", "--requests", "20", "--warmup", "3",
               "--max-tokens", "6", "--model", "austen", "--prompt-bytes", "33"},
              0);
  server_.WaitForRequests(23);
  EXPECT_EQ(report["completed"], 20);
  EXPECT_EQ(report["cut"], 0);
  EXPECT_EQ(report["tokens"], 120);
  EXPECT_EQ(report["errors"], nlohmann::json::object());
  EXPECT_EQ(report["first_token_ms"]["count"], 20);
  EXPECT_EQ(report["inter_token_ms"]["count"], 80);
  EXPECT_GT(report["tokens_per_second"], 0);
  const v1::GenerateRequest request = server_.last<v1::GenerateRequest>();
  EXPECT_EQ(request.model(), "austen");
  EXPECT_EQ(request.text().size(), 33u);
  EXPECT_EQ(request.stop().max_tokens(), 6u);
  EXPECT_TRUE(request.stop().ignore_eos());
}

TEST_F(AftloadTest, PromptsDifferByRequestAndRepeatWithTheSeed) {
  server_.SetScript(TextScript({"ab"}));
  const auto last_prompt = [this](const char* seed, const char* requests) {
    RunJson({"--seed", seed, "--requests", requests, "--prompt-bytes", "100"}, 0);
    return server_.last<v1::GenerateRequest>().text();
  };
  const std::string first = last_prompt("1", "1");
  EXPECT_EQ(first.size(), 100u);
  EXPECT_EQ(last_prompt("1", "1"), first);
  EXPECT_NE(last_prompt("1", "2"), first);
  EXPECT_EQ(last_prompt("1", "2"), last_prompt("2", "1"));
}

TEST_F(AftloadTest, AnOpenLoopReports) {
  server_.SetScript(TextScript({"ab"}));
  const auto report =
      RunJson({"--rate", "1000", "--streams", "2", "--requests", "30", "--prompt", "hello"}, 0);
  EXPECT_EQ(report["completed"], 30);
  EXPECT_EQ(report["loop"], "open");
  EXPECT_EQ(server_.last<v1::GenerateRequest>().text(), "hello");
}

TEST_F(AftloadTest, CutsStreamsWhenTheTimeIsUp) {
  server_.SetScript(EndlessScript());
  const auto report = RunJson({"--streams", "2", "--duration", "0.5"}, 0);
  EXPECT_EQ(report["completed"], 0);
  EXPECT_GE(report["cut"], 2);
  EXPECT_EQ(report["errors"], nlohmann::json::object());
}

TEST_F(AftloadTest, CountsErrorsByCodeAndFails) {
  Script script = FailedScript(grpc::Status(grpc::RESOURCE_EXHAUSTED, "the queue is full"));
  script.trailers = {{"grpc-retry-pushback-ms", "1"}};
  server_.SetScript(script);
  // The models are listed first, by the same script.
  const Ended refused = RunToEnd(Command({"--requests", "3"}));
  EXPECT_EQ(refused.code, 5);
  EXPECT_THAT(refused.err, HasSubstr("the queue is full"));

  script = TextScript({"ab"});
  script.events.pop_back();  // without Finished
  server_.SetScript(script);
  const auto report = RunJson({"--requests", "3", "--streams", "3"}, 1);
  EXPECT_EQ(report["errors"]["DATA_LOSS"], 3);
}

TEST_F(AftloadTest, SendsRefusedRequestsAgainAndCountsThem) {
  server_.SetScript(TextScript({"ab"}));
  const std::multimap<std::string, std::string> at_once = {{"grpc-retry-pushback-ms", "0"}};
  server_.RefuseNext(4, grpc::Status(grpc::UNAVAILABLE, "draining"), at_once);
  const auto report = RunJson({"--requests", "2"}, 0);
  EXPECT_EQ(report["completed"], 2);
  EXPECT_EQ(report["refused"], 4);
  EXPECT_EQ(report["retried"], 4);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["request_ms"]["count"], 2);

  server_.RefuseNext(3, grpc::Status(grpc::RESOURCE_EXHAUSTED, "full"), at_once);
  const auto given_up = RunJson({"--requests", "2", "--attempts", "2"}, 1);
  EXPECT_EQ(given_up["completed"], 1);
  EXPECT_EQ(given_up["refused"], 3);
  EXPECT_EQ(given_up["retried"], 2);
  EXPECT_EQ(given_up["failed"], 1);
  EXPECT_EQ(given_up["errors"]["RESOURCE_EXHAUSTED"], 1);
  server_.WaitForRequests(10);

  server_.RefuseNext(1, grpc::Status(grpc::UNAVAILABLE, "draining"), at_once);
  EXPECT_THAT(RunToEnd(Command({"--requests", "1"})).out,
              HasSubstr("refused                1 times, sent again 1 times"));
}

TEST_F(AftloadTest, WhatHasBegunIsNotSentAgain) {
  server_.SetScript(
      FailedScript(grpc::Status(grpc::UNAVAILABLE, "gone"), {StartedEvent(), DeltaEvent(0, "ab")}));
  const int before = server_.requests();
  RunToEnd(Command({"--requests", "1"}));
  EXPECT_EQ(server_.requests(), before);  // The models are listed first, by the same script.
  Script script = TextScript({"ab"});
  script.events.pop_back();
  server_.SetScript(script);
  const auto report = RunJson({"--requests", "2"}, 1);
  EXPECT_EQ(report["refused"], 0);
  EXPECT_EQ(report["failed"], 2);
}

TEST_F(AftloadTest, AnInterruptCancelsAndStillReports) {
  server_.SetScript(StalledScript({StartedEvent()}));
  Process aftload(Command({"--streams", "2"}));
  server_.WaitForRequests(2);
  aftload.Signal(SIGINT);
  EXPECT_EQ(aftload.Wait(), 130);
  EXPECT_THAT(aftload.out(), HasSubstr("0 completed, 2 cut"));
  server_.WaitForCancellations(2);
}

TEST_F(AftloadTest, PrintsATable) {
  server_.SetScript(TextScript({"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}));
  Process aftload(Command({"--requests", "2", "--max-tokens", "12"}));
  EXPECT_EQ(aftload.Wait(), 0);
  EXPECT_THAT(aftload.out(),
              AllOf(HasSubstr("2 completed"), HasSubstr("tokens/s"), HasSubstr("between tokens"),
                    HasSubstr("in the first tenth"), HasSubstr("% of one core")));
}

TEST(AftloadRestartTest, FindsARestartedServerAgain) {
  auto server = std::make_unique<FakeServer>();
  server->SetScript(TextScript({"ab"}));
  const int port = server->port();
  Process aftload({AFTLOAD, "--address", server->address(), "--duration", "600"});
  server->WaitForRequests(5);
  server.reset();
  server = std::make_unique<FakeServer>(port);
  server->WaitForRequests(5);
  aftload.Signal(SIGINT);
  EXPECT_EQ(aftload.Wait(), 130);
}

TEST(AftloadUsageTest, RefusesOtherMachinesAndSillyNumbers) {
  const std::vector<std::vector<std::string>> cases = {{"--address", "example.org:8500"},
                                                       {"--streams", "0"},
                                                       {"--streams", "257"},
                                                       {"--requests", "0"},
                                                       {"--duration", "0"},
                                                       {"--rate", "-1"},
                                                       {"--max-tokens", "0"},
                                                       {"--prompt", "a", "--prompt-bytes", "3"}};
  for (const auto& arguments : cases) {
    std::vector<std::string> command = {AFTLOAD};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Process aftload(command);
    EXPECT_EQ(aftload.Wait(), 2) << arguments[0] << " " << arguments[1];
    EXPECT_THAT(aftload.err(), testing::StartsWith("aftload: "));
  }
}

TEST(AftloadUsageTest, SaysThatTheServerCannotBeReached) {
  const ClosedPort port;
  Process aftload({AFTLOAD, "--address", port.address()});
  EXPECT_EQ(aftload.Wait(), 3);
  EXPECT_THAT(aftload.err(), HasSubstr("connection refused"));
}

}  // namespace
}  // namespace aft::client
