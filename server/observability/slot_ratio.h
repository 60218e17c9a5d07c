#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace aft::server {

// Adds the metric aft_slots_used_ratio of each model to the metrics of another source. It is
// aft_slots_used divided by aft_slots, 0 to 1; 0 while a model has no slots. Inference routers need
// it because they cannot divide metrics. It is computed at each scrape, so steps do not pay for it.
// Thread-safe if the source is.
class WithSlotRatio final : public prometheus::Collectable {
 public:
  explicit WithSlotRatio(std::shared_ptr<prometheus::Collectable> source)
      : source_(std::move(source)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::shared_ptr<prometheus::Collectable> source_;
};

}  // namespace aft::server
