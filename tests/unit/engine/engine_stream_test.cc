// The tokens, text and timings of accepted requests, which are the same whatever else is in the
// batch.

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace aft::server {
namespace {

using std::chrono::microseconds;
using ::testing::HasSubstr;

TEST_F(EngineTest, FeedsALongPromptInChunks) {
  model.slots = 2;
  model.max_step_tokens = 8;
  Start();
  const GenerationRequest request = Request(RandomText(100), 5);
  ExpectServed(Submit(request).sink, request);
  EXPECT_EQ(control->step_count(), 13 + 4);
}

TEST_F(EngineTest, PassesLogProbabilitiesThrough) {
  Start();
  GenerationRequest request = Request({1}, 1);
  request.sampling.top_logprobs = 2;
  const Sink sink = Submit(request).sink;
  sink->Wait();
  const SampledToken token = sink->parts().at(0).tokens.at(0);
  EXPECT_EQ(token.logprob, -1.0F);
  EXPECT_EQ(token.top.size(), 2U);
}

TEST_F(EngineTest, TimingsCountFromTheArrival) {
  model.max_steps_in_flight = 1;  // the test counts steps
  StartHeld();
  GenerationRequest request = Request({1}, 2);
  clock.Advance(microseconds(10));  // before Submit, for example for tokenizing
  const Sink sink = Submit(request).sink;
  control->WaitUntilBlocked();
  clock.Advance(microseconds(200));
  control->RunSteps(1);
  clock.Advance(microseconds(3000));
  control->Resume();
  const Outcome outcome = sink->Wait();
  EXPECT_EQ(outcome.timings.queue, microseconds(10));
  EXPECT_EQ(outcome.timings.first_token, microseconds(210));
  EXPECT_EQ(outcome.timings.total, microseconds(3210));
  EXPECT_DOUBLE_EQ(SumOf(metrics.queue_seconds(Method::kGenerate, ServiceClass::kNormal)), 10e-6);
  EXPECT_DOUBLE_EQ(SumOf(metrics.ttft_seconds[Method::kGenerate]), 210e-6);
  EXPECT_DOUBLE_EQ(SumOf(metrics.inter_token_seconds[Method::kGenerate]), 3000e-6);
  EXPECT_DOUBLE_EQ(SumOf(metrics.time_per_output_token_seconds[Method::kGenerate]), 3000e-6);
  EXPECT_DOUBLE_EQ(SumOf(metrics.step_seconds), 3200e-6);
}

TEST_F(EngineTest, TheMetricsPageShowsWhatHappened) {
  model.max_steps_in_flight = 1;  // the test counts steps
  model.slots = 2;
  StartHeld();
  const Sink a = Submit(Request({1, 2, 3}, 5)).sink;
  control->WaitUntilBlocked();
  const Sink b = Submit(Request({1, 2}, 4)).sink;
  const Accepted c = Submit(Request({1, 2}, 4));
  control->RunSteps(1);  // step 2: a decodes, b has its prompt, c waits
  EXPECT_THAT(MetricsPage(), HasSubstr("aft_slots{model=\"fake\"} 2\n"));
  engine->Cancel(c.handle);
  clock.Advance(microseconds(120));
  control->Resume();
  for (const Sink& sink : {a, b, c.sink}) sink->Wait();
  ASSERT_EQ(Refused(Request({}, 1)).code(), absl::StatusCode::kInvalidArgument);
  engine->BeginDrain();
  ASSERT_EQ(Refused(Request({1}, 1)).code(), absl::StatusCode::kUnavailable);

  const std::string page = MetricsPage();
  for (const char* line : {
           "aft_request_finished_total{model=\"fake\",reason=\"length\"} 2\n",
           "aft_request_finished_total{model=\"fake\",reason=\"cancelled\"} 1\n",
           "aft_request_finished_total{model=\"fake\",reason=\"error\"} 0\n",
           "aft_rejected_total{model=\"fake\",reason=\"invalid\"} 1\n",
           "aft_rejected_total{model=\"fake\",reason=\"draining\"} 1\n",
           "aft_requests_running{model=\"fake\"} 0\n",
           "aft_requests_waiting{model=\"fake\"} 0\n",
           "aft_slots_used{model=\"fake\"} 0\n",
           "aft_prompt_tokens_total{method=\"Generate\",model=\"fake\"} 5\n",
           "aft_generated_tokens_total{method=\"Generate\",model=\"fake\"} 9\n",
           "aft_ttft_seconds_count{method=\"Generate\",model=\"fake\"} 2\n",
           "aft_queue_seconds_count{method=\"Generate\",model=\"fake\",priority=\"normal\"} 3\n",
           "aft_time_per_output_token_seconds_count{method=\"Generate\",model=\"fake\"} 2\n",
           "aft_inter_token_seconds_count{method=\"Generate\",model=\"fake\"} 7\n",
           "aft_inter_token_seconds_bucket{method=\"Generate\",model=\"fake\",le=\"2.5e-05\"} 6\n",
           "aft_inter_token_seconds_bucket{method=\"Generate\",model=\"fake\",le=\"0.00015\"} 7\n",
           "aft_step_seconds_count{model=\"fake\"} 5\n",
           "aft_step_rows_sum{model=\"fake\"} 9\n",
           "aft_step_tokens_sum{model=\"fake\"} 12\n",
       }) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

TEST_F(EngineTest, LoadCountsRunningAndWaiting) {
  model.slots = 2;
  StartHeld();
  std::vector<Sink> sinks;
  for (int i = 0; i < 5; ++i) sinks.push_back(Submit(Request({1}, 3)).sink);
  EXPECT_EQ(engine->load().running, 2);
  EXPECT_EQ(engine->load().waiting, 3);
  EXPECT_EQ(engine->load().slots, 2);
  control->Resume();
  for (const Sink& sink : sinks) sink->Wait();
  EXPECT_EQ(engine->load().running, 0);
  EXPECT_EQ(engine->load().waiting, 0);
}

// Clients submit, cancel and read at the same time, with little room. Every request ends exactly
// once (RecordingSink checks that), with the right tokens up to its end.
TEST_F(EngineTest, SurvivesManyClientsThatCancelAtRandom) {
  model.slots = 3;
  model.max_step_tokens = 8;
  options.limits.max_queued_requests = 4;
  control->DropInputs();
  Start();
  std::atomic<int> refused = 0;
  std::atomic<int> finished = 0;
  std::vector<std::vector<GenerationRequest>> requests(4);
  for (std::vector<GenerationRequest>& of_client : requests) {
    for (int i = 0; i < 150; ++i) {
      const auto max_tokens = static_cast<int32_t>(1 + random.Below(20));
      of_client.push_back(Request(RandomText(1 + random.Below(30)), max_tokens));
    }
  }
  std::vector<std::thread> clients;
  for (size_t c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 draw(static_cast<uint32_t>(100 + c));
      std::vector<std::pair<Sink, const GenerationRequest*>> open;
      const auto close = [&] {
        const auto [sink, request] = open.back();
        open.pop_back();
        const Outcome outcome = sink->Wait();
        const std::vector<TokenId> expected = Expected(*request);
        const std::vector<TokenId> tokens = sink->tokens();
        EXPECT_TRUE(tokens.size() <= expected.size() &&
                    std::equal(tokens.begin(), tokens.end(), expected.begin()));
        EXPECT_EQ(outcome.status.ok(), tokens.size() == expected.size());
        finished.fetch_add(1);
      };
      for (const GenerationRequest& request : requests[c]) {
        const auto sink = std::make_shared<RecordingSink>();
        const auto handle = engine->Generate(request, sink);
        if (handle.ok()) {
          open.emplace_back(sink, &request);
          if (draw() % 3 == 0) engine->Cancel(*handle);
        } else {
          EXPECT_EQ(handle.status().code(), absl::StatusCode::kResourceExhausted);
          refused.fetch_add(1);
        }
        while (open.size() > draw() % 4) close();
      }
      while (!open.empty()) close();
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(refused + finished, 600);
  EXPECT_GT(finished, 0);
  EXPECT_EQ(engine->load().running, 0);
  ExpectServes();
}

}  // namespace
}  // namespace aft::server
