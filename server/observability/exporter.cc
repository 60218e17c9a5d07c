#include "server/observability/exporter.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "server/observability/log.h"
#include "server/observability/slot_ratio.h"

namespace aft::server {
namespace {

// What the log says of itself, which belongs to the process and not to a registry.
class LogMetrics final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    prometheus::ClientMetric dropped;
    dropped.counter.value = static_cast<double>(log::dropped_lines());
    return {{.name = "aft_log_lines_dropped_total",
             .help = "Log lines dropped, because whoever reads stderr did not keep up.",
             .type = prometheus::MetricType::Counter,
             .metric = {dropped}}};
  }
};

// Opens a connection and drops it.
void Knock(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const int type = found->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const int fd = socket(found->ai_family, type, found->ai_protocol);
  if (fd < 0) return;
  static_cast<void>(connect(fd, found->ai_addr, found->ai_addrlen));  // it knocks either way
  close(fd);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsExporter>> MetricsExporter::Create(
    const std::string& address, std::shared_ptr<prometheus::Registry> registry,
    std::chrono::milliseconds stall_timeout) {
  std::unique_ptr<prometheus::Exposer> exposer;
  try {
    // prometheus-cpp reports a bad or taken address by an exception, and no better reason.
    exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", absl::StrCat(kConnections), "request_timeout_ms",
        absl::StrCat(stall_timeout.count())});
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("metrics_address: cannot listen on ", address, ": ", error.what()));
  }
  std::vector<std::shared_ptr<prometheus::Collectable>> sources = {
      std::make_shared<WithSlotRatio>(std::move(registry)), std::make_shared<LogMetrics>()};
  for (const auto& source : sources) exposer->RegisterCollectable(source);
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return absl::WrapUnique(
      new MetricsExporter(std::move(host), std::move(exposer), std::move(sources)));
}

// civetweb looks whether it is to end only every two seconds, or when somebody connects.
MetricsExporter::~MetricsExporter() {
  const int listening = port();
  std::atomic<bool> closed = false;
  std::thread closing([&] {
    exposer_.reset();
    closed = true;
  });
  while (!closed) {
    Knock(host_, listening);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  closing.join();
}

}  // namespace aft::server
