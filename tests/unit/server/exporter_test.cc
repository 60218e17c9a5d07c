// The metrics page, over sockets. Not under ThreadSanitizer: civetweb calls gmtime on all its
// threads.
#include "server/observability/exporter.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tcp.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

TEST(MetricsExporterTest, ReportsThePortThatTheKernelChose) {
  auto exporter = MetricsExporter::Create("127.0.0.1:0", std::make_shared<prometheus::Registry>());
  ASSERT_TRUE(exporter.ok()) << exporter.status();
  EXPECT_GT((*exporter)->port(), 0);

  const std::string taken = "127.0.0.1:" + std::to_string((*exporter)->port());
  const auto second = MetricsExporter::Create(taken, std::make_shared<prometheus::Registry>());
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kUnavailable, HasSubstr(taken)));
}

// A metrics page of 8 MB, more than sockets buffer.
class StalledScrapersTest : public testing::Test {
 protected:
  void Start(std::chrono::milliseconds stall_timeout) {
    auto& family = prometheus::BuildGauge().Name("wide").Register(*registry_);
    family.Add({{"label", std::string(8 << 20, 'x')}});
    auto created = MetricsExporter::Create("127.0.0.1:0", registry_, stall_timeout);
    ASSERT_TRUE(created.ok()) << created.status();
    exporter_ = *std::move(created);
    address_ = "127.0.0.1:" + std::to_string(exporter_->port());
  }

  // Some that never end their request, and some that never read the answer.
  void Stall(int half_sent, int unread) {
    for (int i = 0; i < half_sent; ++i) {
      stalled_.emplace_back(address_).Send("GET /metr");
    }
    for (int i = 0; i < unread; ++i) {
      stalled_.emplace_back(address_, /*receive_buffer=*/4096)
          .Send("GET /metrics HTTP/1.0\r\n\r\n");
    }
  }

  const std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  std::unique_ptr<MetricsExporter> exporter_;
  std::string address_;
  std::vector<TcpConnection> stalled_;
};

TEST_F(StalledScrapersTest, DoNotKeepOthersFromThePage) {
  Start(std::chrono::hours(1));
  Stall(2, 1);
  EXPECT_THAT(HttpGet(address_, "/metrics"), HasSubstr("wide"));
  Stall(46, 1);
  const std::string page = HttpGet(address_, "/metrics");
  EXPECT_THAT(page, HasSubstr("aft_log_lines_dropped_total 0\n"));
  EXPECT_GT(page.size(), 8 << 20);
}

TEST_F(StalledScrapersTest, AreEndedSoThatEvenMoreOfThemOnlyDelayIt) {
  Start(std::chrono::milliseconds(100));
  Stall(2 * MetricsExporter::kConnections, 2);
  // A machine that is slow itself stalls too, and scrapes again.
  while (HttpGet(address_, "/metrics").find("wide") == std::string::npos) continue;
}

}  // namespace
}  // namespace aft::server
