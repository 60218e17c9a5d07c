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

// The record of one user of a client in a FairQueue.
struct FairUser : FairShare {
  std::array<std::deque<FairItem*>, kServiceClasses> lines;  // the waiting items of each class
};

// The record of one client in a FairQueue.
struct FairAccount : FairShare {
  FairShares<FairUser> users;
  double weight = 1;                 // the weight of the client's last item
  mutable size_t share = 0;          // the client's index in StepTurns, while a step is planned
  mutable uint64_t prompt_step = 0;  // for PromptShares: the last step with a prompt of the client
  mutable uint64_t at_quota = 0;     // for ContinuousScheduler: the last pass with it at its quota
};

// Base of the items of a FairQueue. An item must live as long as it is in the queue.
class FairItem {
 public:
  // `user`: the user for whom the client sends the item; empty if the client names none. REQUIRES:
  // weight > 0.
  FairItem(std::string client, double weight, ServiceClass service_class, std::string user = "");
  FairItem(const FairItem&) = delete;  // queues hold pointers
  FairItem& operator=(const FairItem&) = delete;

  const std::string& client() const { return client_; }
  double weight() const { return weight_; }
  ServiceClass service_class() const { return class_; }
  // The last time at which it began to wait.
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

// Decides which waiting item is served next. It is pure logic, without threads, locks or a clock,
// and does not know what the items wait for.
//
// Better service classes go first. An item that has waited for `age` counts as one class better,
// and after twice that time as two classes better. Within a class, the client with the least
// service for its weight goes first (its virtual time, as in Sheng et al., "Fairness in Serving
// Large Language Models", OSDI 2024). The items of a client go in order. Service is charged when it
// is given, so the cost of an item need not be known in advance. A client whose items begin to wait
// starts no lower than the least virtual time among waiting clients: it gets no credit for the time
// when it had no items. So if two clients always have items waiting in a class, neither gets ahead
// of the other by more than the cost of the items that are served at one time.
//
// The items of a client may belong to several users. The client competes with other clients as if
// all of its items belonged to one user: its oldest item stands for the class. When the client gets
// its turn in that class, its users share it by the same rule, with equal weights.
//
// No item waits forever. Waiting makes every item interactive, and a client that has waited for
// kOverdueAges times `age` goes before all others, however many new clients come. After that it
// waits for at most one turn of each other client. The same holds for the users of a client, within
// the turns of that client.
//
// When nothing waits, all service so far is forgotten, because it delayed no other client. Until
// then the last kMaxIdle clients that have left are remembered, so that a client cannot lose its
// debt by leaving. The same holds for the users of each client.
//
// Cost: a turn is linear in the number of clients and users that wait, the rest constant.
// Thread-compatible.
class FairQueue {
 public:
  static constexpr int kOverdueAges = 4;
  static constexpr size_t kMaxIdle = FairShares<FairAccount>::kMaxIdle;

  // The class in which an item competes now, or nullopt if it may not be served now. It is called
  // for the item of each client and class that would go first; the others of that class wait with
  // it.
  using ClassOf = absl::FunctionRef<std::optional<ServiceClass>(const FairItem&)>;

  // If `age` is zero, waiting does not improve the class of an item.
  explicit FairQueue(Duration age = Duration::zero()) : age_(age) {}

  // The item waits from `now` on, after its user's other items of the same class. REQUIRES: it is
  // not in a queue.
  void Push(FairItem& item, TimePoint now);
  // Like Push, but before those items. REQUIRES: the item is being served here.
  void PushFront(FairItem& item, TimePoint now);
  // The item waits again in its former place, as if it had never left. REQUIRES: it left this queue
  // while it waited, and is not in a queue.
  void PushAgain(FairItem& item);

  // The item whose turn it is, or null if no item may be served.
  FairItem* Next(TimePoint now) const;
  FairItem* Next(TimePoint now, ClassOf class_of) const;
  // From now on the item does not wait, but is being served. REQUIRES: it waits here.
  void Serve(FairItem& item, TimePoint now);

  // Removes the item, whether it waited or was served. Does nothing if it is not in a queue.
  void Leave(FairItem& item);

  // Moves the item to that class, after the items of its user that came before it.
  void SetClass(FairItem& item, ServiceClass service_class);

  // Adds to the service that its client and its user have had. REQUIRES: the item waits or is
  // served here.
  void Charge(FairItem& item, double service);

  // The class that an item of class `base` has reached by waiting.
  ServiceClass Aged(const FairItem& item, ServiceClass base, TimePoint now) const;
  // Whether `a` and `b` have different clients, and that of `a` has had less service for its
  // weight. REQUIRES: both wait or are served here.
  bool LessServed(const FairItem& a, const FairItem& b) const;

  size_t waiting() const { return waiting_; }
  // The number of clients whose items wait.
  size_t waiting_clients() const { return clients_.backlogged().size(); }
  // Whether it waits or is served here.
  static bool Contains(const FairItem& item) { return item.account_ != nullptr; }
  // The account of the item's client. REQUIRES: the item waits or is served here.
  const FairAccount* account(const FairItem& item) const { return item.account_; }
  // The number of items of this item's client that are being served. REQUIRES: the item waits or is
  // served here.
  size_t serving(const FairItem& item) const { return item.account_->serving; }
  // The time since which the longest-waiting item has waited; max() if none waits. Cost: linear in
  // the number of items that wait.
  TimePoint oldest() const;

 private:
  // The rank of a competitor whose best item has waited since `since`. A lower rank goes first.
  using Standing = std::pair<double, TimePoint>;
  Standing StandingOf(const FairShare& share, double virtual_time, TimePoint since,
                      TimePoint now) const;
  // Two items of one class and client: the one whose turn it is, and the one that came first.
  struct Front {
    FairItem* next = nullptr;  // null: the class has none
    FairItem* first = nullptr;
  };
  Front FrontOf(const FairAccount& account, size_t service_class, TimePoint now) const;
  // Counts the item as waiting. The caller puts it in the returned line.
  std::deque<FairItem*>& StartWaiting(FairItem& item, TimePoint now);
  void StopWaiting(FairItem& item);
  // Puts the item in line after those that came before it.
  static void InsertInOrder(FairItem& item, std::deque<FairItem*>& line);
  // Finds the accounts of its client and its user.
  void Enter(FairItem& item);

  const Duration age_;
  FairShares<FairAccount> clients_;
  size_t waiting_ = 0;
  uint64_t arrivals_ = 0;
};

}  // namespace aft::server
