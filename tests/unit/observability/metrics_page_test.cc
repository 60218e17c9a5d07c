// Tests the page of metrics for Prometheus, and which clients get it compressed.

#include "server/observability/metrics_page.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"
#include "server/observability/gzip.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

TEST(GzipTest, IsAcceptedOnlyByName) {
  for (const char* yes : {"gzip", "deflate, gzip;q=1.0, *;q=0.5", " GZip ; q=0.1 ", "br,gzip"}) {
    EXPECT_TRUE(AcceptsGzip(yes)) << yes;
  }
  for (const char* no :
       {"", "identity", "gzip;q=0", "br, gzip; q=0.000", "x-gzip2", "gzip;q=x", ",;,"}) {
    EXPECT_FALSE(AcceptsGzip(no)) << no;
  }
}

TEST(MetricsPageTest, IsPrometheusTextFormatWithTheMetricsOfAllSources) {
  const auto registry = std::make_shared<prometheus::Registry>();
  prometheus::BuildGauge().Name("wide").Register(*registry).Add({{"a", "b\"\n"}}).Set(2);
  const std::string page = MetricsText(AllMetrics(registry, {{.model = "m",
                                                              .oldest_waiting_seconds = 0.5,
                                                              .device_memory_used = 600,
                                                              .device_memory_total = 1000}}));
  EXPECT_THAT(page, HasSubstr("# TYPE wide gauge\nwide{a=\"b\\\"\\n\"} 2\n"));
  EXPECT_THAT(page,
              HasSubstr(absl::StrCat("aft_log_lines_dropped_total ", log::dropped_lines(), "\n")));
  EXPECT_THAT(page, HasSubstr("aft_oldest_waiting_seconds{model=\"m\"} 0.5\n"));
  EXPECT_THAT(page, HasSubstr("aft_device_memory_used_bytes{model=\"m\"} 600\n"));
  EXPECT_THAT(page, HasSubstr("aft_device_memory_bytes{model=\"m\"} 1000\n"));
  EXPECT_THAT(page, HasSubstr("process_start_time_seconds "));
}

}  // namespace
}  // namespace aft::server
