#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/scheduling/service_class.h"
#include "server/scheduling/time.h"

namespace aft::server {

class FairItem;

// What a FairQueue knows of one client.
struct FairAccount {
  std::array<std::deque<FairItem*>, kServiceClasses> lines;  // what waits, in order
  size_t waiting = 0;                                        // items in them
  size_t serving = 0;
  double weight = 1;  // of the item that came last
  size_t index = 0;   // in FairQueue::backlogged_, while items wait
  bool idle = false;  // in FairQueue::idle_
  double virtual_time = 0;
  uint64_t epoch = 0;        // in which virtual_time counts
  TimePoint last_turn;       // when one of its items was served last
  mutable size_t share = 0;  // where StepTurns has this client, while a step is planned
};

// Base of what waits in a FairQueue. Must outlive its stay there.
class FairItem {
 public:
  // REQUIRES: weight > 0.
  FairItem(std::string client, double weight, ServiceClass service_class);
  FairItem(const FairItem&) = delete;  // queues hold pointers
  FairItem& operator=(const FairItem&) = delete;

  const std::string& client() const { return client_; }
  double weight() const { return weight_; }
  ServiceClass service_class() const { return class_; }
  // When it began to wait, last.
  TimePoint since() const { return since_; }

 private:
  friend class FairQueue;

  enum class State { kOut, kWaiting, kServed };

  const std::string client_;
  const double weight_;
  ServiceClass class_;
  State state_ = State::kOut;
  TimePoint since_;
  uint64_t order_ = 0;  // of arrival
  FairAccount* account_ = nullptr;
};

// Whose turn it is, as pure logic: no thread, lock or clock. What the items wait for, their owner
// knows.
//
// Better service classes go first; an item that has waited `age` counts as one class better, after
// twice that as two. Within a class the client goes first that has had the least service for its
// weight (its virtual time, as in Sheng et al., "Fairness in Serving Large Language Models", OSDI
// 2024), and each client's items go in order. Service is charged as it is given, so nobody needs to
// know in advance how much an item takes. A client whose items begin to wait starts no lower than
// the least of those that wait: what it did not use while it was away is no credit. So of two
// clients that both always have items waiting in a class, neither gets ahead of the other by more
// than what the items take that are served at one time.
//
// Nobody starves: waiting makes every item interactive, and a client that has waited kOverdueAges
// times `age` for its turn goes before all others, however many new clients come. So after that it
// waits for one turn at most of each other client.
//
// While nothing waits there is nothing to share, so what was used is forgotten then: service that
// took nothing from anybody is no debt. Until then a client that has left is remembered, the last
// kMaxIdle of them, so that leaving does not pay a debt.
//
// Cost: a turn is linear in the number of clients that wait, the rest constant. Thread-compatible.
class FairQueue {
 public:
  static constexpr int kOverdueAges = 4;
  static constexpr size_t kMaxIdle = 1024;

  // The class for which an item stands in line now, or nullopt: it may not be served now. Asked of
  // the first item of a client and class; those behind it wait with it.
  using ClassOf = absl::FunctionRef<std::optional<ServiceClass>(const FairItem&)>;

  // `age` zero: waiting makes no difference.
  explicit FairQueue(Duration age = Duration::zero()) : age_(age) {}

  // The item waits from `now` on, behind its client's others of its class. REQUIRES: it is in no
  // queue.
  void Push(FairItem& item, TimePoint now);
  // The same, before them. REQUIRES: it is being served here.
  void PushFront(FairItem& item, TimePoint now);
  // The item waits in the place that it had, as if it had never left. REQUIRES: it left this queue
  // while it waited, and is in none.
  void PushAgain(FairItem& item);

  // The item whose turn it is; null: there is none.
  FairItem* Next(TimePoint now) const;
  FairItem* Next(TimePoint now, ClassOf class_of) const;
  // Its turn has come: it no longer waits and is being served. REQUIRES: it waits here.
  void Serve(FairItem& item, TimePoint now);

  // The item is gone, whether it waited or was served; nothing happens when it is in no queue.
  void Leave(FairItem& item);

  // It is of that class from now on, behind those of its client's that came before it.
  void SetClass(FairItem& item, ServiceClass service_class);

  // Its client has got so much service. REQUIRES: the item waits or is served here.
  void Charge(FairItem& item, double service);

  // The class that an item has come to by waiting, standing in line for `base`.
  ServiceClass Aged(const FairItem& item, ServiceClass base, TimePoint now) const;
  // Whether the client of `a` has had less service for its weight than that of `b`, another one.
  // REQUIRES: both wait or are served here.
  bool LessServed(const FairItem& a, const FairItem& b) const;

  size_t waiting() const { return waiting_; }
  // Whether it waits or is served here.
  static bool Contains(const FairItem& item) { return item.account_ != nullptr; }
  // Of the item's client, the same for all of its items. REQUIRES: it waits or is served here.
  const FairAccount* account(const FairItem& item) const { return item.account_; }
  // Items of this one's client that are being served. REQUIRES: it waits or is served here.
  size_t serving(const FairItem& item) const { return item.account_->serving; }
  // Since when one of those first in line has waited, at the longest; max() when none waits.
  TimePoint oldest() const;

 private:
  double VirtualTime(const FairAccount& account) const {
    return account.epoch == epoch_ ? account.virtual_time : 0;
  }
  void Raise(FairAccount& account, double virtual_time);
  // Counts the item as one that waits. The caller puts it in line.
  std::deque<FairItem*>& StartWaiting(FairItem& item, TimePoint now);
  void StopWaiting(FairItem& item);
  // Puts it in line behind those that came before it.
  static void InsertInOrder(FairItem& item, std::deque<FairItem*>& line);
  void Forget();
  void DropIdle(size_t keep);

  const Duration age_;
  std::unordered_map<std::string, FairAccount> accounts_;
  std::vector<FairAccount*> backlogged_;  // with items that wait
  std::deque<std::string> idle_;          // clients that have left; they may have come back
  size_t waiting_ = 0;
  uint64_t epoch_ = 0;  // ends when nothing waits
  uint64_t arrivals_ = 0;
};

}  // namespace aft::server
