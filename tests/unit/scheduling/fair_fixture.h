#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/scheduling/fair_queue.h"
#include "tests/support/manual_clock.h"
#include "tests/unit/scheduling/named_sequence.h"

namespace aft::server {

// A FairQueue with named items.
class FairFixture : public testing::Test {
 protected:
  struct Item : FairItem {
    Item(std::string item_name, const std::string& client, double weight,
         ServiceClass service_class, const std::string& user = "")
        : FairItem(client, weight, service_class, user), name(std::move(item_name)) {}
    std::string name;
  };

  // The name of the item whose turn it is; empty if there is none.
  std::string NextName() const {
    const FairItem* next = queue_.Next(clock_.Now());
    return next == nullptr ? "" : static_cast<const Item*>(next)->name;
  }

  // Serves the next item, charges `service` for it and removes it. Returns its name, or an empty
  // string if there is none.
  std::string Run(double service = 1) {
    FairItem* next = queue_.Next(clock_.Now());
    if (next == nullptr) return "";
    queue_.Serve(*next, clock_.Now());
    queue_.Charge(*next, service);
    queue_.Leave(*next);
    return static_cast<Item*>(next)->name;
  }
  std::vector<std::string> RunAll(double service = 1) {
    std::vector<std::string> names;
    while (queue_.waiting() > 0) names.push_back(Run(service));
    return names;
  }

  ManualClock clock_;
  FairQueue queue_{kAge};
  std::deque<Item> items_;
};

}  // namespace aft::server
