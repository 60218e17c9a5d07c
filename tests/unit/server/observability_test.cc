#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/observability/log.h"
#include "server/observability/log_format.h"
#include "server/observability/metrics.h"
#include "server/observability/slot_ratio.h"

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
  a.requests.Increment(Method::kGenerate, absl::StatusCode::kOk);
  b.requests.Increment(Method::kGenerate, absl::StatusCode::kUnavailable);
  b.requests.Increment(Method::kGenerate, absl::StatusCode::kUnavailable);
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

TEST(MetricsTest, TheServersOwnMetricsAreThereFromTheStart) {
  prometheus::Registry registry;
  ServerMetrics metrics(registry, "1.2.3");
  metrics.requests_without_model.Increment(Method::kGenerate, absl::StatusCode::kNotFound);
  const std::string page = Page(registry);
  EXPECT_THAT(page, HasSubstr("aft_build_info{version=\"1.2.3\"} 1"));
  EXPECT_THAT(page, HasSubstr("aft_draining 0"));
  EXPECT_THAT(page,
              HasSubstr("aft_requests_total{code=\"NOT_FOUND\",method=\"Generate\",model=\"\"} 1"));
}

TEST(SlotRatioTest, IsOfEachModelItsUsedSlotsOverItsSlots) {
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
  EXPECT_THAT(text(), HasSubstr("aft_slots_used{model=\"a\"} 2\n"));  // and all the others
  b.slots_used.Set(0);
  EXPECT_THAT(text(), HasSubstr("aft_slots_used_ratio{model=\"b\"} 0\n"));
}

TEST(MetricsTest, BucketsSpanWhatIsPromised) {
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
  const absl::string_view evil("a=b c\n\r\t\"\\\0\x1B\xFF\x7F", 14);
  const std::string quoted = R"("a=b c\n\r\t\"\\\u0000\u001b)"
                             "\xEF\xBF\xBD"
                             R"(\u007f")";
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

TEST(LogTest, DropsWhatIsBelowTheLevelAndWritesWholeLinesToStderr) {
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
  EXPECT_EQ(sum.Value(), 1);  // what one has set goes with it
}

}  // namespace
}  // namespace aft::server
