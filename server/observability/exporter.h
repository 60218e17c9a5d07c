#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "prometheus/exposer.h"
#include "prometheus/registry.h"

namespace aft::server {

// Serves GET /metrics in Prometheus' text format until destroyed.
class MetricsExporter {
 public:
  // `address` is host:port; port 0 lets the kernel choose. UNAVAILABLE, naming the address, when it
  // cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsExporter>> Create(
      const std::string& address, std::shared_ptr<prometheus::Registry> registry);
  ~MetricsExporter();

  // The bound port.
  int port() const { return exposer_->GetListeningPorts().front(); }

 private:
  MetricsExporter(std::string host, std::unique_ptr<prometheus::Exposer> exposer,
                  std::shared_ptr<prometheus::Registry> registry)
      : host_(std::move(host)), registry_(std::move(registry)), exposer_(std::move(exposer)) {}

  const std::string host_;
  std::shared_ptr<prometheus::Registry> registry_;  // the exposer itself holds it weakly
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace aft::server
