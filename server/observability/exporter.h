#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"
#include "prometheus/registry.h"

namespace aft::server {

// Serves GET /metrics in Prometheus' text format until destroyed, with the metrics of the log
// beside those of the registry. So many connections at once may stall, before others wait for one
// of them to time out.
class MetricsExporter {
 public:
  static constexpr int kConnections = 64;

  // `address` is host:port; port 0 lets the kernel choose. UNAVAILABLE, naming the address, when it
  // cannot be bound. `stall_timeout`: longest that a request may take to arrive, and that an answer
  // may wait for its reader.
  static absl::StatusOr<std::unique_ptr<MetricsExporter>> Create(
      const std::string& address, std::shared_ptr<prometheus::Registry> registry,
      std::chrono::milliseconds stall_timeout = std::chrono::seconds(2));
  ~MetricsExporter();

  // The bound port.
  int port() const { return exposer_->GetListeningPorts().front(); }

 private:
  MetricsExporter(std::string host, std::unique_ptr<prometheus::Exposer> exposer,
                  std::vector<std::shared_ptr<prometheus::Collectable>> sources)
      : host_(std::move(host)), sources_(std::move(sources)), exposer_(std::move(exposer)) {}

  const std::string host_;
  // The exposer itself holds them weakly.
  std::vector<std::shared_ptr<prometheus::Collectable>> sources_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace aft::server
