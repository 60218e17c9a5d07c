#include "server/observability/exporter.h"

#include <exception>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace aft::server {

absl::StatusOr<std::unique_ptr<MetricsExporter>> MetricsExporter::Create(
    const std::string& address, std::shared_ptr<prometheus::Registry> registry) {
  std::unique_ptr<prometheus::Exposer> exposer;
  try {
    // prometheus-cpp reports a bad or taken address by an exception, and no better reason.
    exposer = std::make_unique<prometheus::Exposer>(address, /*num_threads=*/2);
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("metrics_address: cannot listen on ", address, ": ", error.what()));
  }
  exposer->RegisterCollectable(registry);
  return absl::WrapUnique(new MetricsExporter(std::move(exposer), std::move(registry)));
}

}  // namespace aft::server
