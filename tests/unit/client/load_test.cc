// Runs aftload as a process against scripted servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/mutex.h"
#include "client/aftload/schedule.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/aftload_fixture.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/process.h"

namespace aft::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(AftloadTest, AClosedLoopSendsTheGivenLoadAndReports) {
  server_.SetScript(TextScript({"ab", "cd", "ef"}));
  const auto report =
      RunJson({"--streams", "4", "--connections", "2", "--requests", "20", "--warmup", "3",
               "--max-tokens", "6", "--model", "austen", "--prompt-bytes", "33"},
              0);
  server_.WaitForRequests(23);
  EXPECT_EQ(server_.peers().size(), 2u);
  EXPECT_EQ(report["completed"], 20);
  EXPECT_EQ(report["cut"], 0);
  EXPECT_EQ(report["total_output_tokens"], 120);
  EXPECT_EQ(report["total_input_tokens"], 100);  // each Started has 5 prompt tokens
  EXPECT_EQ(report["max_concurrent_requests"], 4);
  EXPECT_EQ(report["errors"], nlohmann::json::object());
  EXPECT_EQ(report["count_ttft"], 20);
  EXPECT_EQ(report["count_itl"], 40);
  EXPECT_GT(report["output_throughput"], 0);
  const v1::GenerateRequest request = server_.last<v1::GenerateRequest>();
  EXPECT_EQ(request.model(), "austen");
  EXPECT_EQ(request.text().size(), 33u);
  EXPECT_EQ(request.stop().max_tokens(), 6u);
  EXPECT_TRUE(request.stop().ignore_eos());
  EXPECT_EQ(RunJson({"--streams", "4", "--requests", "2"}, 0)["max_concurrent_requests"], 2);
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
  EXPECT_NE(last_prompt("1", "2"), last_prompt("2", "1"));
  RunJson({"--requests", "1", "--warmup", "5", "--prompt-bytes", "100"}, 0);
  EXPECT_EQ(server_.last<v1::GenerateRequest>().text(), first);  // the warm-up has other prompts
}

TEST_F(AftloadTest, PromptsAndLengthsFollowTheFlags) {
  server_.SetScript(TextScript({"ab"}));
  const auto last = [this](const std::vector<std::string>& arguments) {
    RunJson(arguments, 0);
    return server_.last<v1::GenerateRequest>();
  };
  const auto words = last({"--requests", "1", "--prefix-bytes", "40", "--prompt-bytes",
                           "uniform:10:10", "--max-tokens", "lognormal:5:0"});
  EXPECT_EQ(words.text().size(), 50u);
  EXPECT_EQ(words.stop().max_tokens(), 5u);
  const TempFolder folder;
  std::ofstream(folder.File("p.jsonl")) << R"({"prompt": "one"})"
                                        << "\n"
                                        << R"({"prompt": "two", "output_tokens": 7})"
                                        << "\n";
  const auto line = last({"--requests", "2", "--prompt-file", folder.File("p.jsonl")});
  EXPECT_EQ(line.text(), "two");
  EXPECT_EQ(line.stop().max_tokens(), 7u);
}

TEST_F(AftloadTest, AnOpenLoopSendsWhetherOrNotTheServerAnswers) {
  server_.SetScript(StalledScript({StartedEvent()}));
  Process aftload(Command({"--rate", "1000", "--burstiness", "0.5", "--requests", "20"}));
  server_.WaitForRequests(20);
  aftload.Signal(SIGINT);
  EXPECT_EQ(aftload.Wait(), 130);
  EXPECT_THAT(aftload.out(),
              AllOf(HasSubstr("0 completed, 20 cut"), HasSubstr("(burstiness 0.5)")));
}

TEST_F(AftloadTest, RequestsThatNeverFoundAFreeStreamAreCounted) {
  server_.SetScript(StalledScript({StartedEvent()}));
  Process aftload(Command({"--rate", "1000000", "--streams", "3", "--requests", "10", "--json"}));
  server_.WaitForRequests(3);  // by now all ten are due: the last one after ten microseconds
  aftload.Signal(SIGINT);
  EXPECT_EQ(aftload.Wait(), 130);
  const auto report = nlohmann::json::parse(aftload.out());
  EXPECT_EQ(report["cut"], 10);
  EXPECT_EQ(report["max_concurrent_requests"], 3);
  EXPECT_EQ(report["count_send_lag"], 3);
  EXPECT_EQ(server_.requests(), 3);
}

TEST_F(AftloadTest, NoScheduledRequestIsForgottenByAClientThatCannotKeepUp) {
  server_.SetScript(TextScript({"ab"}));
  Schedule schedule(
      {.rate = 1e6, .requests = 1'000'000, .duration = std::chrono::milliseconds(50), .seed = 9},
      {});
  uint64_t scheduled = 0;
  while (schedule.Next({})) ++scheduled;
  const auto report = RunJson(
      {"--rate", "1000000", "--streams", "2", "--duration", "0.05", "--drain", "0", "--seed", "9"},
      0);
  EXPECT_GT(report["cut"], 1000);
  EXPECT_EQ(report["num_prompts"], scheduled);
  EXPECT_LE(report["max_concurrent_requests"], 2);  // it may be too late for the first one already
}

TEST_F(AftloadTest, RequestsThatRunAtTheEndHaveTimeToDrain) {
  server_.SetScript(StalledScript({StartedEvent()}));
  const std::vector<std::string> load = {"--rate",     "1000", "--requests", "4",
                                         "--duration", "0.9",  "--progress"};
  std::vector<std::string> longer = load;
  longer.insert(longer.end(), {"--drain", "600"});
  Process by_default(Command(load)), by_flag(Command(longer));
  for (Process* const aftload : {&by_default, &by_flag}) {
    EXPECT_TRUE(aftload->WaitForError("0 done, 0 failed, 4 running, 0 waiting, 0 tokens"));
    aftload->Signal(SIGINT);
    EXPECT_EQ(aftload->Wait(), 130);
  }
}

TEST_F(AftloadTest, ARunForEachRate) {
  Mutex mutex;
  std::set<std::string> prompts;
  server_.SetAnswer([&](const v1::GenerateRequest& request) {
    MutexLock lock(mutex);
    prompts.insert(request.text());
    return TextScript({"ab"});
  });
  const Ended ended = RunToEnd(Command({"--rate", "500,1000", "--requests", "5", "--warmup", "2",
                                        "--json", "--goodput", "e2el:1000000", "tpot:1000000"}));
  EXPECT_EQ(ended.code, 0) << ended.err;
  const std::vector<std::string> lines = absl::StrSplit(ended.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const auto report = nlohmann::json::parse(lines[i]);
    EXPECT_EQ(report["loop"], "open");
    EXPECT_EQ(report["request_rate"], i == 0 ? 500 : 1000);
    EXPECT_EQ(report["completed"], 5);
    EXPECT_EQ(report["goodput_ratio"], 1);
    EXPECT_EQ(report["goodput_limits_ms"], nlohmann::json({{"e2el", 1e6}, {"tpot", 1e6}}));
  }
  const TempFolder folder;
  std::ofstream(folder.File("chart.js")) << "// charts";
  const Ended page =
      RunToEnd({PYTHON, "-B", LOAD_REPORT}, ended.out, {"CHART_JS=" + folder.File("chart.js")});
  EXPECT_EQ(page.code, 0) << page.err;
  EXPECT_THAT(page.out, HasSubstr("The knee: 1000 requests/s"));
  EXPECT_EQ(RunJson({"--requests", "2", "--goodput", "ttft:0"}, 0)["goodput_ratio"], 0);
  MutexLock lock(mutex);
  EXPECT_EQ(prompts.size(), 14U);  // this last run repeats two; the others share none
}

// The first request of the measurement would come after minutes.
TEST_F(AftloadTest, TheWarmUpDoesNotKeepToTheRate) {
  server_.SetScript(TextScript({"ab"}));
  const auto report = RunJson(
      {"--rate", "0.001", "--warmup", "3", "--requests", "1", "--duration", "60", "--drain", "0"},
      0);
  EXPECT_EQ(report["num_prompts"], 0);
  EXPECT_EQ(server_.requests(), 3);
}

TEST_F(AftloadTest, TheWarmUpOfAnOpenLoopSendsOnlySomeRequestsAtOnce) {
  server_.SetScript(StalledScript({StartedEvent()}));
  Process aftload(Command({"--rate", "0.001", "--warmup", "100"}));
  server_.WaitForRequests(16);
  aftload.Signal(SIGINT);
  EXPECT_EQ(aftload.Wait(), 130);
  EXPECT_EQ(server_.requests(), 16);
}

TEST_F(AftloadTest, TheDurationDoesNotLimitTheWarmUp) {
  server_.SetScript(TextScript({"ab"}));
  RunJson({"--warmup", "300", "--requests", "1", "--duration", "0.001"}, 0);
  EXPECT_GE(server_.requests(), 300);  // the measured request may be too late
}

TEST_F(AftloadTest, CancelsAsPlanned) {
  server_.SetScript(EndlessScript());
  const auto report =
      RunJson({"--cancel-share", "1", "--max-tokens", "5", "--requests", "6", "--streams", "2"}, 0);
  server_.WaitForCancellations(6);
  EXPECT_EQ(report["others"]["cancels"]["cancelled"], 6);
  EXPECT_EQ(report["completed"], 0);
  EXPECT_GE(report["total_output_tokens"], 6);
  EXPECT_LE(report["total_output_tokens"], 30);
}

TEST_F(AftloadTest, ADeadlineThatPassesIsNoError) {
  server_.SetScript(StalledScript({StartedEvent()}));
  const auto report =
      RunJson({"--deadline-share", "1", "--deadline-ms", "5", "--requests", "3"}, 0);
  EXPECT_EQ(report["others"]["deadline"]["expired"], 3);
  EXPECT_EQ(report["failed"], 0);
}

TEST_F(AftloadTest, ADeadlineThatPassedBeforeTheRequestWasSentHolds) {
  server_.SetScript(StalledScript({StartedEvent()}));
  const auto report =
      RunJson({"--rate", "1000000", "--streams", "1", "--requests", "5", "--deadline-share", "1",
               "--deadline-ms", "5", "--duration", "30", "--drain", "0"},
              0);
  EXPECT_EQ(report["others"]["deadline"]["expired"], 5);
}

TEST_F(AftloadTest, ADeadlineOfTheServerIsAnError) {
  server_.SetScript(TextScript({"ab"}));
  server_.RefuseNext(1, grpc::Status(grpc::DEADLINE_EXCEEDED, "limits.max_request_ms"));
  EXPECT_EQ(RunJson({"--requests", "1"}, 1)["errors"], nlohmann::json({{"DEADLINE_EXCEEDED", 1}}));
}

TEST_F(AftloadTest, SlowReadersAreCountedApart) {
  server_.SetScript(TextScript({"a", "b"}));
  const auto report = RunJson({"--slow-share", "1", "--slow-ms", "1", "--requests", "3"}, 0);
  EXPECT_EQ(report["others"]["slow"]["completed"], 3);
  EXPECT_EQ(report["completed"], 0);
  EXPECT_EQ(report["count_ttft"], 0);
  // A request that reads nothing for an hour does not delay the end.
  const auto cut = RunJson({"--slow-share", "1", "--slow-ms", "3600000", "--duration", "0.3"}, 0);
  EXPECT_EQ(cut["others"]["slow"]["cut"], 1);
  EXPECT_EQ(cut["others"]["slow"]["completed"], 0);
}

TEST_F(AftloadTest, SeveralTargetsTakeTurns) {
  FakeServer other;
  server_.SetScript(TextScript({"a"}));
  Script broken = TextScript({"a"});
  broken.events.pop_back();
  other.SetScript(broken);
  const Ended ended = RunToEnd({AFTLOAD, "--target", server_.address(), other.address(),
                                "--connections", "2", "--requests", "10", "--json"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(server_.requests(), 5);
  EXPECT_EQ(other.requests(), 5);
  const auto targets = nlohmann::json::parse(ended.out)["targets"];
  EXPECT_EQ(targets[server_.address()]["completed"], 5);
  EXPECT_EQ(targets[other.address()]["errors"], nlohmann::json({{"DATA_LOSS", 5}}));
}

TEST_F(AftloadTest, AThousandStreamsAtOnce) {
  server_.SetScript(StalledScript({StartedEvent(), DeltaEvent(0, "a")}));
  Process aftload(Command({"--streams", "1000", "--requests", "2000", "--connections", "4"}));
  server_.WaitForRequests(1000);
  aftload.Signal(SIGINT);
  EXPECT_EQ(aftload.Wait(), 130);
  EXPECT_THAT(aftload.out(),
              AllOf(HasSubstr("0 completed, 1000 cut"), HasSubstr("at most 1000 at once")));
  server_.WaitForCancellations(1000);
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
  // aftload lists the models first, and this call gets the same script.
  const Ended refused = RunToEnd(Command({"--requests", "3"}));
  EXPECT_EQ(refused.code, 5);
  EXPECT_THAT(refused.err, HasSubstr("the queue is full"));
  EXPECT_EQ(server_.requests(), 0);

  script = TextScript({"ab"});
  script.events.pop_back();  // without Finished
  server_.SetScript(script);
  const auto report = RunJson({"--requests", "3", "--streams", "3"}, 1);
  EXPECT_EQ(report["errors"]["DATA_LOSS"], 3);
  EXPECT_EQ(report["refused"], 0);  // a stream that has begun is not sent again
  EXPECT_EQ(report["failed"], 3);
  // A closed loop waits 0.1 s after each failure.
  EXPECT_GE(RunJson({"--requests", "3"}, 1)["duration"], 0.2);
}

TEST_F(AftloadTest, SendsRefusedRequestsAgainAndCountsThem) {
  server_.SetScript(TextScript({"ab"}));
  const std::multimap<std::string, std::string> at_once = {{"grpc-retry-pushback-ms", "0"}};
  server_.RefuseNext(4, grpc::Status(grpc::UNAVAILABLE, "draining"), at_once);
  const auto report = RunJson({"--requests", "2"}, 0);
  EXPECT_EQ(report["completed"], 2);
  EXPECT_EQ(report["refused"], 4);
  EXPECT_EQ(report["retried"], 4);
  EXPECT_EQ(report["count_refusal"], 4);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["count_e2el"], 2);

  // gRPC's core gives this status to a call that meets the GOAWAY of a server that drains.
  server_.RefuseNext(1, grpc::Status(grpc::CANCELLED, "GOAWAY"), at_once);
  const auto met_goaway = RunJson({"--requests", "1"}, 0);
  EXPECT_EQ(met_goaway["refused"], 1);
  EXPECT_EQ(met_goaway["retried"], 1);

  server_.RefuseNext(3, grpc::Status(grpc::RESOURCE_EXHAUSTED, "full"), at_once);
  const auto given_up = RunJson({"--requests", "2", "--attempts", "2"}, 1);
  EXPECT_EQ(given_up["completed"], 1);
  EXPECT_EQ(given_up["refused"], 3);
  EXPECT_EQ(given_up["retried"], 2);
  EXPECT_EQ(given_up["failed"], 1);
  EXPECT_EQ(given_up["errors"]["RESOURCE_EXHAUSTED"], 1);
  server_.WaitForRequests(12);

  // Each refusal counts from its own attempt, without the pauses.
  server_.RefuseNext(2, grpc::Status(grpc::UNAVAILABLE, "draining"),
                     {{"grpc-retry-pushback-ms", "50"}});
  const auto paused = RunJson({"--requests", "1"}, 0);
  EXPECT_LT(2 * paused["mean_refusal_ms"].get<double>() + 2 * 50, paused["max_e2el_ms"]);

  server_.RefuseNext(1, grpc::Status(grpc::UNAVAILABLE, "draining"), at_once);
  EXPECT_THAT(RunToEnd(Command({"--requests", "1"})).out,
              HasSubstr("refused                1 times, sent again 1 times"));
}

TEST_F(AftloadTest, ACallThatTheServerDoesNotWantAgainIsNoRefusal) {
  server_.SetScript(TextScript({"ab"}));
  server_.RefuseNext(1, grpc::Status(grpc::RESOURCE_EXHAUSTED, "too large"),
                     {{"grpc-retry-pushback-ms", "-1"}});
  const auto report = RunJson({"--requests", "1"}, 1);
  EXPECT_EQ(report["errors"], nlohmann::json({{"RESOURCE_EXHAUSTED", 1}}));
  EXPECT_EQ(report["refused"], 0);
  EXPECT_EQ(report["retried"], 0);
}

// Usage in the trailers says that the stream had begun.
TEST_F(AftloadTest, AStreamThatEndsBeforeItsFirstTokenIsNoRefusal) {
  server_.SetScript(TextScript({"ab"}));
  server_.RefuseNext(1, grpc::Status(grpc::UNAVAILABLE, "draining"),
                     {{"aft-usage-bin", v1::Usage().SerializeAsString()}});
  const auto report = RunJson({"--requests", "1"}, 1);
  EXPECT_EQ(report["errors"], nlohmann::json({{"UNAVAILABLE", 1}}));
  EXPECT_EQ(report["refused"], 0);
}

TEST_F(AftloadTest, ARequestThatBeginsTwiceHasOnePrompt) {
  server_.SetAnswer([calls = 0](const v1::GenerateRequest&) mutable {
    if (++calls > 1) return TextScript({"ab"});
    Script script = FailedScript({grpc::RESOURCE_EXHAUSTED, "full"}, {StartedEvent()});
    script.trailers = {{"grpc-retry-pushback-ms", "0"}};
    return script;
  });
  const auto report = RunJson({"--requests", "1"}, 0);
  EXPECT_EQ(report["retried"], 1);
  EXPECT_EQ(report["total_input_tokens"], 5);
}

TEST_F(AftloadTest, AFullDiskIsReported) {
  server_.SetScript(TextScript({"a"}));
  const Ended ended = RunToEnd({"sh", "-c", "exec \"$@\" >/dev/full", "sh", AFTLOAD, "--address",
                                server_.address(), "--requests", "1"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.err, "aftload: cannot write the output: No space left on device\n");
}

TEST_F(AftloadTest, WaitsAsLongAsARefusalSays) {
  server_.SetScript(TextScript({"ab"}));
  server_.RefuseNext(1000, grpc::Status(grpc::RESOURCE_EXHAUSTED, "full"),
                     {{"grpc-retry-pushback-ms", "3600000"}});
  nlohmann::json report;
  do {  // on a slow machine the run may be over before the refusal comes
    report =
        RunJson({"--rate", "1000", "--requests", "1", "--duration", "0.5", "--drain", "0.5"}, 0);
    EXPECT_EQ(report["cut"], 1);
  } while (report["refused"] == 0);
  EXPECT_EQ(report["refused"], 1);  // otherwise it was sent again at once
  EXPECT_EQ(report["retried"], 1);
}

TEST_F(AftloadTest, PrintsATable) {
  server_.SetScript(TextScript({"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}));
  Process aftload(Command({"--requests", "2", "--max-tokens", "12"}));
  EXPECT_EQ(aftload.Wait(), 0);
  EXPECT_THAT(aftload.out(),
              AllOf(HasSubstr("2 completed"), HasSubstr("tokens/s"), HasSubstr("between messages"),
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

}  // namespace
}  // namespace aft::client
