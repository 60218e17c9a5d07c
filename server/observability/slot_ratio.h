#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace aft::server {

// Another source's metrics, and of each model in them aft_slots_used_ratio: aft_slots_used over
// aft_slots, 0 to 1. It is there for whoever takes one metric as it is, as inference routers do;
// whoever can divide needs it not. 0 while a model has no slots. Made when somebody asks, so that
// it costs a step nothing. Thread-safe if the source is.
class WithSlotRatio final : public prometheus::Collectable {
 public:
  explicit WithSlotRatio(std::shared_ptr<prometheus::Collectable> source)
      : source_(std::move(source)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::shared_ptr<prometheus::Collectable> source_;
};

}  // namespace aft::server
