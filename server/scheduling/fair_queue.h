#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "server/scheduling/fair_shares.h"
#include "server/scheduling/service_class.h"
#include "server/scheduling/time.h"

namespace aft::server {

class FairItem;

// What a FairQueue knows of one user of a client.
struct FairUser : FairShare {
  std::array<std::deque<FairItem*>, kServiceClasses> lines;  // what waits, in order
};

// What a FairQueue knows of one client.
struct FairAccount : FairShare {
  FairShares<FairUser> users;
  double weight = 1;         // of the item that came last
  mutable size_t share = 0;  // where StepTurns has this client, while a step is planned
};

// Base of what waits in a FairQueue. Must outlive its stay there.
class FairItem {
 public:
  // `user`: for whom the client sends it; "" if the client does not say so. REQUIRES: weight > 0.
  FairItem(std::string client, double weight, ServiceClass service_class, std::string user = "");
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
  const std::string user_;
  const double weight_;
  ServiceClass class_;
  State state_ = State::kOut;
  TimePoint since_;
  uint64_t order_ = 0;              // of arrival
  FairAccount* account_ = nullptr;  // of its client, while it is in a queue
  FairUser* user_account_ = nullptr;
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
// A client's items may belong to several users. A client competes with other clients as if all of
// its items belonged to one user: the item that came first stands for its class. When the client
// gets its turn in that class, its users share it by the same rule, with equal weights: the user
// goes first that has had the least service, and each user's items go in order.
//
// Nobody starves: waiting makes every item interactive, and a client that has waited kOverdueAges
// times `age` for its turn goes before all others, however many new clients come. So after that it
// waits for one turn at most of each other client. The same holds for the users of a client, in the
// turns of that client.
//
// While nothing waits there is nothing to share, so what was used is forgotten then: service that
// took nothing from anybody is no debt. Until then a client that has left is remembered, the last
// kMaxIdle of them, so that leaving does not pay a debt. Of each client's users likewise.
//
// Cost: a turn is linear in the number of clients and users that wait, the rest constant.
// Thread-compatible.
class FairQueue {
 public:
  static constexpr int kOverdueAges = 4;
  static constexpr size_t kMaxIdle = FairShares<FairAccount>::kMaxIdle;

  // The class for which an item stands in line now, or nullopt: it may not be served now. Asked of
  // the item of a client and class that would go first; the others of the class wait with it.
  using ClassOf = absl::FunctionRef<std::optional<ServiceClass>(const FairItem&)>;

  // `age` zero: waiting makes no difference.
  explicit FairQueue(Duration age = Duration::zero()) : age_(age) {}

  // The item waits from `now` on, behind its user's others of its class. REQUIRES: it is in no
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

  // It is of that class from now on, behind those of its user's that came before it.
  void SetClass(FairItem& item, ServiceClass service_class);

  // Its client and its user have got so much service. REQUIRES: the item waits or is served here.
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
  // Where a competitor stands among others whose best item has waited since `since`; less is
  // better.
  using Standing = std::pair<double, TimePoint>;
  Standing StandingOf(const FairShare& share, double virtual_time, TimePoint since,
                      TimePoint now) const;
  // The items of one class and client: the one whose turn it is, and the one that came first.
  struct Front {
    FairItem* next = nullptr;  // null: the class has none
    FairItem* first = nullptr;
  };
  Front FrontOf(const FairAccount& account, size_t service_class, TimePoint now) const;
  // Counts the item as one that waits. The caller puts it in line.
  std::deque<FairItem*>& StartWaiting(FairItem& item, TimePoint now);
  void StopWaiting(FairItem& item);
  // Puts it in line behind those that came before it.
  static void InsertInOrder(FairItem& item, std::deque<FairItem*>& line);
  // Finds the accounts of its client and its user.
  void Enter(FairItem& item);

  const Duration age_;
  FairShares<FairAccount> clients_;
  size_t waiting_ = 0;
  uint64_t arrivals_ = 0;
};

}  // namespace aft::server
