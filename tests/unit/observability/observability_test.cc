#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <future>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/observability/log.h"
#include "server/observability/log_format.h"
#include "server/observability/metrics.h"
#include "server/observability/model_report.h"
#include "server/observability/process_metrics.h"
#include "server/observability/slot_ratio.h"
#include "tests/support/short_memory.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Page(const prometheus::Registry& registry) {
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

TEST(MetricsTest, TwoModelsShareFamiliesAndDifferByLabel) {
  prometheus::Registry registry;
  ModelMetrics a(registry, "a");
  ModelMetrics b(registry, "b");
  a.calls.Count(Method::kGenerate, absl::StatusCode::kOk);
  b.calls.Count(Method::kGenerate, absl::StatusCode::kUnavailable);
  b.calls.Count(Method::kGenerate, absl::StatusCode::kUnavailable);
  const std::string page = Page(registry);
  EXPECT_THAT(page, HasSubstr("aft_requests_total{code=\"OK\",method=\"Generate\",model=\"a\"} 1"));
  EXPECT_THAT(
      page,
      HasSubstr("aft_requests_total{code=\"UNAVAILABLE\",method=\"Generate\",model=\"b\"} 2"));
  EXPECT_EQ(page.find("# TYPE aft_requests_total counter"),
            page.rfind("# TYPE aft_requests_total counter"));
}

TEST(MetricsTest, ExactlyOneModelStateIsSet) {
  prometheus::Registry registry;
  ModelMetrics metrics(registry, "m");
  metrics.SetState(ModelMetrics::State::kLoading);
  metrics.SetState(ModelMetrics::State::kReady);
  const std::string page = Page(registry);
  EXPECT_THAT(page, HasSubstr("aft_model_state{model=\"m\",state=\"ready\"} 1"));
  EXPECT_THAT(page, HasSubstr("aft_model_state{model=\"m\",state=\"loading\"} 0"));
}

TEST(MetricsTest, EveryReasonHasItsOwnLabel) {
  prometheus::Registry registry;
  ModelMetrics model(registry, "m");
  const StateMetrics states(registry);
  const auto expect = [&](prometheus::Counter& counter, const std::string& sample) {
    counter.Increment(7);
    EXPECT_THAT(Page(registry), HasSubstr(sample + "\"} 7\n"));
  };
  for (const auto& [reason, label] : {std::pair(Rejection::kQueuedRequests, "queued_requests"),
                                      {Rejection::kQueuedTokens, "queued_tokens"},
                                      {Rejection::kClientQueue, "client_queue"},
                                      {Rejection::kDeadline, "deadline"},
                                      {Rejection::kDraining, "draining"},
                                      {Rejection::kInvalid, "invalid"},
                                      {Rejection::kFailed, "failed"},
                                      {Rejection::kNotReady, "not_ready"}}) {
    expect(model.rejected(reason), absl::StrCat(R"(aft_rejected_total{model="m",reason=")", label));
  }
  for (const auto& [reason, label] : {std::pair(Ending::kEos, "eos"),
                                      {Ending::kStop, "stop"},
                                      {Ending::kLength, "length"},
                                      {Ending::kDone, "done"},
                                      {Ending::kCancelled, "cancelled"},
                                      {Ending::kDeadline, "deadline"},
                                      {Ending::kShutdown, "shutdown"},
                                      {Ending::kSlowClient, "slow_client"},
                                      {Ending::kQueueTimeout, "queue_timeout"},
                                      {Ending::kError, "error"},
                                      {Ending::kFailed, "failed"}}) {
    expect(model.finished(reason),
           absl::StrCat(R"(aft_request_finished_total{model="m",reason=")", label));
  }
  for (const auto& [reason, label] : {std::pair(EngineFailure::kStep, "step"),
                                      {EngineFailure::kNotFinite, "not_finite"},
                                      {EngineFailure::kStateLost, "state_lost"},
                                      {EngineFailure::kModel, "model"}}) {
    expect(model.failures(reason),
           absl::StrCat(R"(aft_engine_failures_total{model="m",reason=")", label));
  }
  for (const auto& [reason, label] : {std::pair(StateRefusal::kFull, "full"),
                                      {StateRefusal::kUnknown, "unknown"},
                                      {StateRefusal::kExpired, "expired"},
                                      {StateRefusal::kInvalid, "invalid"},
                                      {StateRefusal::kUnwritten, "unwritten"}}) {
    expect(states.refused(reason), absl::StrCat(R"(aft_states_refused_total{reason=")", label));
  }
  for (const auto& [reason, label] : {std::pair(RedisFailure::kUnsent, "unsent"),
                                      {RedisFailure::kBroken, "broken"},
                                      {RedisFailure::kRefused, "refused"}}) {
    expect(states.redis_failed(reason),
           absl::StrCat(R"(aft_states_redis_failed_total{reason=")", label));
  }
  expect(model.loads(true), R"(aft_model_loads_total{model="m",result="ok)");
  expect(model.loads(false), R"(aft_model_loads_total{model="m",result="failed)");
  expect(states.handed_to_store, R"(aft_streams_handed_over_total{to="store)");
  expect(states.handed_to_client, R"(aft_streams_handed_over_total{to="client)");
  expect(states.handed_text_only, R"(aft_streams_handed_over_total{to="none)");
  expect(model.device_graph_steps, R"(aft_device_steps_total{launch="graph",model="m)");
  expect(model.device_eager_steps, R"(aft_device_steps_total{launch="eager",model="m)");
}

TEST(MetricsTest, TheMetricsOfTheServerExistFromTheStart) {
  prometheus::Registry registry;
  ServerMetrics metrics(registry, {"1.2.3", "abc", "Release", "2.11.0"});
  metrics.calls.Count(Method::kGenerate, absl::StatusCode::kNotFound);
  const std::string page = Page(registry);
  EXPECT_THAT(page, HasSubstr("aft_build_info{build_type=\"Release\",revision=\"abc\",torch=\"2.11."
                              "0\",version=\"1.2.3\"} 1"));
  EXPECT_THAT(page, HasSubstr("aft_draining 0"));
  EXPECT_THAT(page,
              HasSubstr("aft_requests_total{code=\"NOT_FOUND\",method=\"Generate\",model=\"\"} 1"));
}

TEST(MetricsTest, AllMethodsAreCountedAndModelMethodsForEachModel) {
  prometheus::Registry registry;
  ModelMetrics model(registry, "m");
  ServerMetrics server(registry, {.version = "1"});
  for (size_t i = 0; i < kMethods; ++i) {
    const auto method = static_cast<Method>(i);
    CallMetrics& calls = i < kModelMethods ? model.calls : server.calls;
    calls.Count(method, absl::StatusCode::kOk);
    calls.Count(method, static_cast<absl::StatusCode>(17));  // not a code of gRPC
    calls.Observe(method, std::chrono::milliseconds(250));
    const std::string labels = std::string("method=\"") + MethodName(method) + "\",model=\"" +
                               (i < kModelMethods ? "m" : "") + "\"}";
    EXPECT_THAT(Page(registry), HasSubstr("aft_requests_total{code=\"OK\"," + labels + " 1\n"));
    EXPECT_THAT(Page(registry),
                HasSubstr("aft_requests_total{code=\"UNKNOWN\"," + labels + " 1\n"));
    EXPECT_THAT(Page(registry), HasSubstr("aft_e2e_seconds_sum{" + labels + " 0.25\n"));
  }
}

TEST(MetricsTest, TheValueOfACounterByMethodIsTheSumOfAllMethods) {
  prometheus::Registry registry;
  const ModelMetrics metrics(registry, "m");
  metrics.prompt_tokens[Method::kGenerate].Increment(3);
  metrics.prompt_tokens[Method::kScore].Increment(4);
  EXPECT_EQ(metrics.prompt_tokens.Value(), 7);
  EXPECT_EQ(metrics.prompt_tokens[Method::kScore].Value(), 4);
}

double ProcessValue(const std::string& name) {
  for (const prometheus::MetricFamily& family : ProcessMetrics()) {
    if (family.name != name) continue;
    EXPECT_EQ(family.metric.size(), 1U);
    const bool counts = family.type == prometheus::MetricType::Counter;
    return counts ? family.metric[0].counter.value : family.metric[0].gauge.value;
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}

TEST(ProcessMetricsTest, ReportTheResourcesThatTheProcessUses) {
  const double files = ProcessValue("process_open_fds");
  {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/dev/null", "r"),
                                                               &std::fclose);
    EXPECT_EQ(ProcessValue("process_open_fds"), files + 1);
  }
  EXPECT_EQ(ProcessValue("process_open_fds"), files);
  EXPECT_GT(ProcessValue("process_max_fds"), files);

  std::promise<void> end;
  std::thread thread([waits = end.get_future()]() mutable { waits.wait(); });
  const double threads = ProcessValue("process_threads");
  EXPECT_GE(threads, 2);
  end.set_value();
  thread.join();
  while (ProcessValue("process_threads") >= threads) continue;  // the kernel counts it for longer
  const auto tasks = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  const auto most = tasks();  // threads of other tests may still end
  EXPECT_LE(ProcessValue("process_threads"), most);
  EXPECT_GE(ProcessValue("process_threads"), tasks());

  const double cpu = ProcessValue("process_cpu_seconds_total");
  while (ProcessValue("process_cpu_seconds_total") < cpu + 0.02) continue;

  const double resident = ProcessValue("process_resident_memory_bytes");
  constexpr size_t kBytes = size_t{64} << 20;
  const std::string touched(kBytes, 'x');
  EXPECT_GE(ProcessValue("process_resident_memory_bytes"), resident + kBytes / 2.0);
  EXPECT_GT(ProcessValue("process_virtual_memory_bytes"),
            ProcessValue("process_resident_memory_bytes"));
  EXPECT_EQ(touched.back(), 'x');

  const auto now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const double started = ProcessValue("process_start_time_seconds");
  EXPECT_LE(started, now + 2);  // the boot time is in whole seconds
  EXPECT_GT(started, now - 24 * 3600);
}

// A start time that moved would look like a restart.
TEST(ProcessMetricsTest, TheBootTimeStaysWhenTheClockIsSet) {
  const TempFolder folder;
  BootTime boot(folder.File("stat"));
  EXPECT_EQ(boot.Get(), std::nullopt);
  WriteBytes(folder.File("stat"), "cpu 1 2\nbtime 100\nprocesses 7\n");
  EXPECT_EQ(boot.Get(), 100);
  WriteBytes(folder.File("stat"), "cpu 1 2\nbtime 3700\nprocesses 7\n");
  EXPECT_EQ(boot.Get(), 100);
}

TEST(ModelReportTest, TheMetricsShowOnlyTheCurrentReports) {
  std::vector<ModelReport> reports;
  const auto text = [&reports] {
    return prometheus::TextSerializer().Serialize(ReportMetrics(reports));
  };
  EXPECT_THAT(text(), Not(HasSubstr("{")));
  ModelReport served{.model = "m", .oldest_waiting_seconds = 1.5};
  reports = {served};
  EXPECT_THAT(text(), HasSubstr("aft_oldest_waiting_seconds{model=\"m\"} 1.5\n"));
  EXPECT_THAT(text(), Not(HasSubstr("aft_model_info{")));  // it is not loaded
  EXPECT_THAT(text(), Not(HasSubstr("aft_last_step_age_seconds{")));
  served.last_step_age_seconds = 2;  // only retired versions run requests
  reports = {served};
  EXPECT_THAT(text(), HasSubstr("aft_last_step_age_seconds{model=\"m\"} 2\n"));
  EXPECT_THAT(text(), Not(HasSubstr("aft_model_info{")));
  served.version = "2";
  served.last_step_age_seconds = 0.25;
  served.fingerprint = "42";
  served.architecture = "aft_local";
  served.device = "cpu (AVX2, 3 threads)";
  served.weight_format = "int8";
  reports = {served};
  EXPECT_THAT(text(), HasSubstr("aft_last_step_age_seconds{model=\"m\"} 0.25\n"));
  EXPECT_THAT(text(), HasSubstr("aft_model_info{model=\"m\",version=\"2\",fingerprint=\"42\","
                                "architecture=\"aft_local\",device=\"cpu (AVX2, 3 threads)\","
                                "weight_format=\"int8\"} 1\n"));
}

TEST(SlotRatioTest, DividesTheUsedSlotsOfEachModelByItsSlots) {
  const auto registry = std::make_shared<prometheus::Registry>();
  const WithSlotRatio page(registry);
  const auto text = [&page] { return prometheus::TextSerializer().Serialize(page.Collect()); };
  EXPECT_EQ(text(), "");
  ModelMetrics a(*registry, "a");
  ModelMetrics b(*registry, "b");
  ModelMetrics loading(*registry, "loading");
  a.slots_total.Set(8);
  a.slots_used.Set(2);
  b.slots_total.Set(3);
  b.slots_used.Set(3);
  for (const char* line :
       {"# TYPE aft_slots_used_ratio gauge\n", "aft_slots_used_ratio{model=\"a\"} 0.25\n",
        "aft_slots_used_ratio{model=\"b\"} 1\n", "aft_slots_used_ratio{model=\"loading\"} 0\n"}) {
    EXPECT_THAT(text(), HasSubstr(line));
  }
  EXPECT_THAT(text(), HasSubstr("aft_slots_used{model=\"a\"} 2\n"));  // all other metrics stay
  b.slots_used.Set(0);
  EXPECT_THAT(text(), HasSubstr("aft_slots_used_ratio{model=\"b\"} 0\n"));
}

TEST(MetricsTest, BucketsSpanTheDocumentedRanges) {
  const std::vector<double>& sizes = SizeBuckets();
  ASSERT_EQ(sizes.size(), 17U);
  for (size_t i = 0; i < sizes.size(); ++i)
    EXPECT_EQ(sizes[i], std::ldexp(1.0, static_cast<int>(i)));
  const std::vector<double>& seconds = LatencyBuckets();
  EXPECT_EQ(seconds.front(), 25e-6);
  EXPECT_EQ(seconds.back(), 300);
  for (size_t i = 1; i < seconds.size(); ++i) {
    EXPECT_GT(seconds[i], 1.25 * seconds[i - 1]);
    EXPECT_LE(seconds[i], 3.0 * seconds[i - 1]);
  }
}

TEST(HistogramBatchTest, AddsTheSameAsSingleObservations) {
  const double values[] = {0.0, 25e-6, 26e-6, 0.001, 0.3, 300.0, 301.0};
  prometheus::Histogram single(LatencyBuckets());
  prometheus::Histogram batched(LatencyBuckets());
  HistogramBatch batch(batched, LatencyBuckets());
  for (const double value : values) {
    single.Observe(value);
    batch.Add(value);
  }
  EXPECT_EQ(batched.Collect().histogram.sample_count, 0U);
  batch.Flush();
  batch.Flush();  // empty now
  const auto expected = single.Collect().histogram;
  const auto actual = batched.Collect().histogram;
  EXPECT_EQ(actual.sample_count, expected.sample_count);
  EXPECT_DOUBLE_EQ(actual.sample_sum, expected.sample_sum);
  ASSERT_EQ(actual.bucket.size(), expected.bucket.size());
  for (size_t i = 0; i < expected.bucket.size(); ++i) {
    EXPECT_EQ(actual.bucket[i].cumulative_count, expected.bucket[i].cumulative_count) << i;
  }
}

// 2026-01-31T08:09:10.000123Z
const std::chrono::system_clock::time_point kTime =
    std::chrono::sys_days(std::chrono::year(2026) / 1 / 31) + std::chrono::hours(8) +
    std::chrono::minutes(9) + std::chrono::seconds(10) + std::chrono::microseconds(123);

TEST(LogFormatTest, WritesLogfmt) {
  const std::string id = "r-1";
  EXPECT_EQ(
      log::FormatLine(log::Format::kLogfmt, log::Level::kInfo, kTime, "request.done",
                      {{"id", id},
                       {"tokens", 12},
                       {"bytes", size_t{7}},
                       {"ttft_ms", 1.5},
                       {"stopped", true},
                       {"reason", "max tokens"},
                       {"empty", ""}}),
      "time=2026-01-31T08:09:10.000123Z level=info event=request.done id=r-1 tokens=12 bytes=7 "
      "ttft_ms=1.5 stopped=true reason=\"max tokens\" empty=\"\"");
}

TEST(LogFormatTest, WritesJson) {
  EXPECT_EQ(
      log::FormatLine(log::Format::kJson, log::Level::kError, kTime, "engine.step_failed",
                      {{"rows", -1}, {"error", "no \"good\""}, {"retry", false}}),
      R"({"time": "2026-01-31T08:09:10.000123Z", "level": "error", )"
      R"("event": "engine.step_failed", "rows": -1, "error": "no \"good\"", "retry": false})");
}

TEST(LogFormatTest, NoValueCanBreakALineOrForgeAField) {
  const absl::string_view evil(
      "a=b c\n\r\t\"\\\0\x1B\xFF\x7F"
      "\xC2\x85\xC2\x9F\xC2\xA0",
      20);
  const std::string quoted = R"("a=b c\n\r\t\"\\\u0000\u001b)"
                             "\xEF\xBF\xBD"
                             R"(\u007f\u0085\u009f)"
                             "\xC2\xA0\"";
  EXPECT_THAT(log::FormatLine(log::Format::kLogfmt, log::Level::kInfo, kTime, "e", {{"v", evil}}),
              HasSubstr(" v=" + quoted));
  EXPECT_THAT(log::FormatLine(log::Format::kJson, log::Level::kInfo, kTime, "e", {{"v", evil}}),
              HasSubstr("\"v\": " + quoted + "}"));
}

TEST(LogFormatTest, NumbersThatJsonDoesNotKnowBecomeStrings) {
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_THAT(log::FormatLine(log::Format::kJson, log::Level::kInfo, kTime, "e", {{"v", infinite}}),
              HasSubstr("\"v\": \"inf\"}"));
}

TEST(LogTest, DropsLinesBelowTheLevelAndWritesWholeLinesToStderr) {
  log::Init(log::Level::kWarning, log::Format::kLogfmt);
  testing::internal::CaptureStderr();
  log::Info("quiet");
  log::Warning("loud", {{"n", 1}});
  log::Text("as it is\n");
  EXPECT_TRUE(log::Flush(std::chrono::hours(1)));
  const std::string text = testing::internal::GetCapturedStderr();
  log::Init(log::Level::kInfo, log::Format::kLogfmt);
  EXPECT_THAT(text, Not(HasSubstr("quiet")));
  EXPECT_THAT(text, EndsWith("level=warning event=loud n=1\nas it is\n"));
}

TEST(LogTest, ALineForWhichThereIsNoMemoryIsCountedAsDropped) {
  const std::string longer(100'000, 'x');
  const uint64_t before = log::dropped_lines();
  testing::internal::CaptureStderr();
  {
    const ShortMemory short_memory(10'000);
    log::Info("long", {{"value", longer}});
  }
  ASSERT_TRUE(log::Flush(std::chrono::seconds(60)));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("xxx")));
  EXPECT_EQ(log::dropped_lines(), before + 1);
}

TEST(LogTest, ParsesLevelsAndFormats) {
  EXPECT_EQ(log::ParseLevel("debug").value(), log::Level::kDebug);
  EXPECT_EQ(log::ParseFormat("json").value(), log::Format::kJson);
  EXPECT_EQ(log::ParseLevel("loud").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(log::ParseFormat("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GaugePartTest, AGaugeIsTheSumOfItsParts) {
  prometheus::Registry registry;
  auto& sum = prometheus::BuildGauge().Name("sum").Register(registry).Add({});
  GaugePart one(sum);
  {
    GaugePart other(sum);
    one.Set(3);
    other.Set(5);
    EXPECT_EQ(sum.Value(), 8);
    one.Set(1);
    other.Add(-2);
    EXPECT_EQ(sum.Value(), 4);
    EXPECT_EQ(one.Value(), 1);
    EXPECT_EQ(other.Value(), 3);
  }
  EXPECT_EQ(sum.Value(), 1);  // a destroyed part no longer counts
}

}  // namespace
}  // namespace aft::server
