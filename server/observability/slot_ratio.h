#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace aft::server {

// Adds to another source's metrics, for each model, aft_slots_used_ratio: aft_slots_used over
// aft_slots, 0 to 1. It is for readers that use one metric as it is, as inference routers do;
// others can divide. 0 while a model has no slots. It is computed at each scrape, so it costs a
// step nothing. Thread-safe if the source is.
class WithSlotRatio final : public prometheus::Collectable {
 public:
  explicit WithSlotRatio(std::shared_ptr<prometheus::Collectable> source)
      : source_(std::move(source)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::shared_ptr<prometheus::Collectable> source_;
};

}  // namespace aft::server
