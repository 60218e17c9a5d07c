#include "server/scheduling/fair_queue.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/property/random_inputs.h"
#include "tests/unit/scheduling/fair_fixture.h"

namespace aft::server {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

class FairQueueTest : public FairFixture {
 protected:
  // The first character of `name` is the client, as in "a1".
  Item& Make(const std::string& name, ServiceClass service_class = kNormal, double weight = 1) {
    return items_.emplace_back(name, name.substr(0, 1), weight, service_class);
  }
  Item& Push(const std::string& name, ServiceClass service_class = kNormal, double weight = 1) {
    Item& item = Make(name, service_class, weight);
    queue_.Push(item, clock_.Now());
    return item;
  }
};

TEST_F(FairQueueTest, HasNothingAtFirst) {
  EXPECT_EQ(queue_.Next(clock_.Now()), nullptr);
  EXPECT_EQ(queue_.waiting(), 0U);
  EXPECT_EQ(queue_.oldest(), TimePoint::max());
}

TEST_F(FairQueueTest, BetterClassesGoFirstAndItemsOfAClientInOrder) {
  Push("a1", kBatch);
  Push("a2", kNormal);
  Push("b1", kInteractive);
  Push("a3", kNormal);
  Push("a4", kInteractive);
  EXPECT_EQ(queue_.waiting(), 5U);
  EXPECT_THAT(RunAll(), ElementsAre("b1", "a4", "a2", "a3", "a1"));
}

TEST_F(FairQueueTest, WaitingMakesAnItemOneClassBetterForEachAge) {
  Item& old = Push("a1", kBatch);
  for (const auto& [waited, reached] :
       std::vector<std::pair<Duration, ServiceClass>>{{kAge - Duration(1), kBatch},
                                                      {kAge, kNormal},
                                                      {2 * kAge - Duration(1), kNormal},
                                                      {2 * kAge, kInteractive},
                                                      {9 * kAge, kInteractive}}) {
    EXPECT_EQ(queue_.Aged(old, kBatch, old.since() + waited), reached);
  }
  EXPECT_EQ(queue_.Aged(old, kNormal, old.since() + kAge), kInteractive);
  EXPECT_EQ(queue_.Aged(old, kBatch, old.since() - kAge), kBatch);
  EXPECT_EQ(FairQueue().Aged(old, kBatch, old.since() + 9 * kAge), kBatch);

  Push("b1", kNormal);
  clock_.Advance(kAge - Duration(1));
  EXPECT_EQ(NextName(), "b1");
  clock_.Advance(Duration(1));
  Push("c1", kInteractive);
  Push("c2", kNormal);
  // b1 counts as interactive now, and a1 as normal; both have waited longer.
  EXPECT_THAT(RunAll(), ElementsAre("b1", "c1", "a1", "c2"));
}

TEST_F(FairQueueTest, TheClientThatHasHadTheLeastGoesFirst) {
  for (const char* name : {"a1", "a2", "a3", "b1", "b2", "c1"}) Push(name);
  EXPECT_EQ(Run(30), "a1");
  EXPECT_EQ(Run(10), "b1");
  EXPECT_EQ(Run(15), "c1");
  EXPECT_EQ(Run(10), "b2");
  EXPECT_EQ(Run(10), "a2");
  EXPECT_EQ(Run(10), "a3");
}

TEST_F(FairQueueTest, WeightsDivideTheService) {
  Push("a1", kNormal, 3);
  Push("a2", kNormal, 3);
  Push("a3", kNormal, 3);
  Push("a4", kNormal, 3);
  Push("b1");
  Push("b2");
  // a is served until both have a virtual time of 3. Then a4 goes first: it has waited longer.
  EXPECT_THAT(RunAll(3), ElementsAre("a1", "b1", "a2", "a3", "a4", "b2"));
}

TEST_F(FairQueueTest, ServiceCountsWhileItIsGiven) {
  Item& a = Push("a1");
  Push("a2");
  Push("b1");
  ASSERT_EQ(queue_.Next(clock_.Now()), &a);
  queue_.Serve(a, clock_.Now());
  EXPECT_EQ(queue_.serving(a), 1U);
  EXPECT_EQ(NextName(), "a2");  // nothing was charged yet
  queue_.Charge(a, 1);
  EXPECT_EQ(NextName(), "b1");
  EXPECT_TRUE(queue_.LessServed(items_[2], a));
  EXPECT_FALSE(queue_.LessServed(a, items_[2]));
  EXPECT_FALSE(queue_.LessServed(items_[1], a));  // they have the same client
  queue_.Leave(a);
  EXPECT_EQ(NextName(), "b1");
}

TEST_F(FairQueueTest, TimeAwayIsNoCredit) {
  for (int i = 0; i < 12; ++i) Push(absl::StrCat("a", i));
  for (int i = 0; i < 6; ++i) Run(100);
  for (int i = 0; i < 12; ++i) Push(absl::StrCat("b", i));
  // They take turns, although b has had nothing so far.
  int of_b = 0;
  for (int i = 0; i < 10; ++i) of_b += Run(100)[0] == 'b' ? 1 : 0;
  EXPECT_EQ(of_b, 5);
}

TEST_F(FairQueueTest, AClientThatJoinsStartsAtTheLeastOfThoseThatWait) {
  for (const char* name : {"a1", "a2", "b1", "b2"}) Push(name);
  EXPECT_EQ(Run(5), "a1");
  EXPECT_EQ(Run(9), "b1");
  Push("c1");
  Push("c2");
  EXPECT_EQ(Run(3), "a2");  // a and c are at 5
  EXPECT_EQ(Run(3), "c1");
  EXPECT_EQ(Run(3), "c2");  // c is at 8, b at 9
  EXPECT_EQ(Run(3), "b2");
}

TEST_F(FairQueueTest, LeavingDoesNotPayADebt) {
  Push("a1");
  for (int i = 0; i < 6; ++i) Push(absl::StrCat("b", i));
  EXPECT_EQ(Run(3), "a1");  // a has nothing left
  Push("a2");
  EXPECT_EQ(Run(), "b0");
  EXPECT_EQ(Run(), "b1");
  EXPECT_EQ(Run(), "b2");
  EXPECT_EQ(Run(), "b3");  // now both are at 3
  EXPECT_EQ(Run(), "a2");
}

TEST_F(FairQueueTest, ServiceIsNoDebtIfNothingElseWaited) {
  Item& a = Push("a1");
  queue_.Serve(a, clock_.Now());
  queue_.Charge(a, 1000);
  Item& b = Push("b1");  // from here on service counts
  queue_.Charge(a, 1);
  queue_.Serve(b, clock_.Now());
  queue_.Charge(b, 2);
  EXPECT_FALSE(queue_.LessServed(b, a));
  EXPECT_TRUE(queue_.LessServed(a, b));
  Push("a2");
  Push("b2");
  EXPECT_EQ(NextName(), "a2");
  EXPECT_FALSE(queue_.LessServed(a, b));  // nothing waited before a2, so past service is forgotten
}

TEST_F(FairQueueTest, RemembersALimitedNumberOfClientsThatHaveLeft) {
  Push("z0", kBatch);  // waits all the time
  Push("z1");
  EXPECT_EQ(Run(1), "z1");
  Push("a0");
  EXPECT_EQ(Run(100), "a0");
  const auto others = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Item& item = items_.emplace_back("x", absl::StrCat("x", items_.size()), 1, kInteractive);
      queue_.Push(item, clock_.Now());
      queue_.Leave(item);
    }
  };
  others(FairQueue::kMaxIdle - 2);  // with a that is kMaxIdle - 1; z has never left
  Item& a1 = Push("a1");
  Item& z2 = Push("z2");
  EXPECT_TRUE(queue_.LessServed(z2, a1));
  queue_.Leave(a1);
  others(2);  // its second time counts
  Item& a2 = Push("a2");
  EXPECT_TRUE(queue_.LessServed(z2, a2));
  queue_.Leave(a2);
  others(FairQueue::kMaxIdle);
  EXPECT_FALSE(queue_.LessServed(z2, Push("a3")));  // a is forgotten, and begins where z stands
}

TEST_F(FairQueueTest, AClientThatHasWaitedForLongEnoughGoesFirst) {
  const auto push_new = [&] {
    const std::string client = absl::StrCat("new", items_.size());
    queue_.Push(items_.emplace_back(client, client, 1, kInteractive), clock_.Now());
    return client;
  };
  Push("a0", kInteractive);
  Push("a1", kBatch);
  std::string oldest = push_new();
  clock_.Advance(seconds(1));
  EXPECT_EQ(Run(1'000'000), "a0");  // from here on a has had far more than all others
  for (Duration waited{}; waited < FairQueue::kOverdueAges * kAge; waited += seconds(1)) {
    // New clients keep coming. Each begins at the virtual time of the first of them.
    std::string next = push_new();
    EXPECT_EQ(Run(), std::exchange(oldest, std::move(next)));
    clock_.Advance(seconds(1));
  }
  // The wait counts from the client's last turn, not from a1's arrival one second earlier.
  EXPECT_EQ(Run(), "a1");
}

TEST_F(FairQueueTest, AnItemThatComesBackGoesBeforeItsClientsOthers) {
  Item& first = Push("a1");
  queue_.Serve(first, clock_.Now());
  clock_.Advance(seconds(1));
  Push("a2");
  Item& other = Push("b1");
  clock_.Advance(seconds(1));
  queue_.PushFront(first, clock_.Now());
  EXPECT_EQ(first.since(), clock_.Now());
  EXPECT_EQ(queue_.serving(first), 0U);
  EXPECT_EQ(queue_.waiting(), 3U);
  EXPECT_EQ(queue_.oldest(), other.since());
  EXPECT_THAT(RunAll(), ElementsAre("a1", "b1", "a2"));
}

TEST_F(FairQueueTest, AnItemThatIsPushedAgainHasItsFormerPlace) {
  Push("a1");
  Item& second = Push("a2");
  const TimePoint since = second.since();
  clock_.Advance(seconds(1));
  Push("a3");
  queue_.Leave(second);
  clock_.Advance(seconds(1));
  Push("a4");
  queue_.PushAgain(second);
  EXPECT_EQ(second.since(), since);
  EXPECT_EQ(queue_.waiting(), 4U);
  EXPECT_THAT(RunAll(), ElementsAre("a1", "a2", "a3", "a4"));
}

TEST_F(FairQueueTest, AnItemThatIsPushedAgainStaysBehindOneThatCameBack) {
  for (const char* name : {"a1", "a2", "a3"}) Push(name);
  Item& fourth = Push("a4");
  Item& last = Push("a5");
  queue_.Leave(fourth);
  queue_.Serve(last, clock_.Now());
  queue_.PushFront(last, clock_.Now());
  queue_.PushAgain(fourth);
  EXPECT_THAT(RunAll(), ElementsAre("a5", "a1", "a2", "a3", "a4"));
}

TEST_F(FairQueueTest, AnItemMayLeaveAtAnyTime) {
  Item& waits = Push("a1");
  Item& served = Push("a2");
  Item& never = Make("a3");
  Push("a4");
  queue_.Serve(served, clock_.Now());
  EXPECT_EQ(queue_.serving(waits), 1U);
  queue_.Leave(served);
  EXPECT_EQ(queue_.serving(waits), 0U);
  queue_.Leave(waits);
  queue_.Leave(waits);
  queue_.Leave(never);
  EXPECT_THAT(RunAll(), ElementsAre("a4"));
  queue_.Push(waits, clock_.Now());
  EXPECT_THAT(RunAll(), ElementsAre("a1"));
}

TEST_F(FairQueueTest, TheCallerChoosesTheClassOfAnItemOrKeepsItFromBeingServed) {
  Push("a1", kInteractive);
  Push("b1", kNormal);
  Push("b2", kNormal);
  const auto next = [&](ServiceClass of_a, bool b_may) {
    const FairItem* found =
        queue_.Next(clock_.Now(), [&](const FairItem& item) -> std::optional<ServiceClass> {
          if (item.client() == "a") return of_a;
          return b_may ? std::optional(item.service_class()) : std::nullopt;
        });
    return static_cast<const Item*>(found)->name;
  };
  EXPECT_EQ(next(kInteractive, true), "a1");
  EXPECT_EQ(next(kBatch, true), "b1");
  EXPECT_EQ(next(kBatch, false), "a1");
  EXPECT_EQ(queue_.Next(clock_.Now(), [](const FairItem&) { return std::nullopt; }), nullptr);
}

// Several clients always have items waiting, all of one class and of any users. `places` items are
// served at a time. Each takes a random amount of service, in portions.
TEST_F(FairQueueTest, BackloggedClientsStayTogetherInProportionToTheirWeights) {
  TestRandom random;
  for (int round = 0; round < 20; ++round) {
    FairQueue queue(kAge);
    constexpr int64_t kLargest = 50;
    const int64_t places = 1 + random.Below(4);
    std::vector<std::string> clients;
    std::vector<double> weights;
    for (int64_t i = 0; i < 2 + random.Below(3); ++i) {
      clients.push_back(absl::StrCat("client", i));
      weights.push_back(static_cast<double>(1 + random.Below(4)));
    }
    std::deque<Item> items;
    std::map<std::string, double> virtual_time;
    for (const std::string& client : clients) virtual_time[client] = 0;
    struct Served {
      Item* item;
      double left;
    };
    std::vector<Served> served;
    const auto add = [&](size_t client) {
      const std::string user = random.Below(2) == 0 ? "" : absl::StrCat("u", random.Below(9));
      queue.Push(items.emplace_back("", clients[client], weights[client], kNormal, user),
                 clock_.Now());
    };
    for (size_t client = 0; client < clients.size(); ++client) {
      for (int i = 0; i < 10; ++i) add(client);
    }
    for (int turn = 0; turn < 2000; ++turn) {
      while (static_cast<int64_t>(served.size()) < places) {
        auto& item = static_cast<Item&>(*queue.Next(clock_.Now()));
        queue.Serve(item, clock_.Now());
        served.push_back({&item, static_cast<double>(1 + random.Below(kLargest))});
        add(static_cast<size_t>(std::find(clients.begin(), clients.end(), item.client()) -
                                clients.begin()));
      }
      Served& one = served[static_cast<size_t>(random.Below(places))];
      const double portion = std::min(one.left, static_cast<double>(1 + random.Below(9)));
      queue.Charge(*one.item, portion);
      one.left -= portion;
      const auto client = static_cast<size_t>(
          std::find(clients.begin(), clients.end(), one.item->client()) - clients.begin());
      virtual_time[one.item->client()] += portion / weights[client];
      if (one.left == 0) {
        queue.Leave(*one.item);
        one = served.back();
        served.pop_back();
      }
      const auto [low, high] =
          std::minmax_element(virtual_time.begin(), virtual_time.end(),
                              [](const auto& a, const auto& b) { return a.second < b.second; });
      ASSERT_LE(high->second - low->second, static_cast<double>(kLargest * places));
    }
  }
}

// Arrivals, cancels, classes, clients, users and weights are random. Every item is served or leaves
// once, in the order of its user. However many new clients and users come, no item waits longer
// than its bound.
TEST_F(FairQueueTest, NothingIsLostAndNothingStarves) {
  TestRandom random;
  for (int round = 0; round < 20; ++round) {
    FairQueue queue(kAge);
    std::deque<Item> items;
    std::map<const FairItem*, int> turns_left;  // for overdue items
    std::vector<Item*> waiting;
    int64_t taken = 0;
    int64_t gone = 0;
    for (int turn = 0; turn < 1500; ++turn) {
      clock_.Advance(seconds(1));
      const int64_t arrivals = turn > 1000 ? 0 : random.Below(3);
      for (int64_t i = 0; i < arrivals; ++i) {
        // Half of the items come from new clients.
        const std::string client = random.Below(2) == 0 ? absl::StrCat("new", items.size())
                                                        : absl::StrCat("c", random.Below(5));
        const std::string user =
            absl::StrCat("u", random.Below(2) == 0 ? items.size() : random.Below(3));
        Item& item = items.emplace_back(user, client, 1.0 + static_cast<double>(random.Below(3)),
                                        static_cast<ServiceClass>(random.Below(3)), user);
        queue.Push(item, clock_.Now());
        waiting.push_back(&item);
      }
      if (!waiting.empty() && random.Below(10) == 0) {
        const auto at =
            static_cast<std::ptrdiff_t>(random.Below(static_cast<int64_t>(waiting.size())));
        queue.Leave(*waiting[static_cast<size_t>(at)]);
        turns_left.erase(waiting[static_cast<size_t>(at)]);
        waiting.erase(waiting.begin() + at);
        ++gone;
      }
      for (const Item* item : waiting) {
        if (clock_.Now() - item->since() < FairQueue::kOverdueAges * kAge) continue;
        // At worst all other items of its client go before it, each after one item of every other
        // client.
        turns_left.emplace(item, static_cast<int>(waiting.size() * (waiting.size() + 1)));
      }
      FairItem* next = queue.Next(clock_.Now());
      ASSERT_EQ(next == nullptr, waiting.empty());
      ASSERT_EQ(queue.waiting(), waiting.size());
      if (next == nullptr) continue;
      for (const Item* item : waiting) {
        const bool behind = item->client() == next->client() &&
                            item->name == static_cast<Item*>(next)->name &&
                            item->service_class() == next->service_class();
        if (!behind) continue;
        ASSERT_EQ(item, next);  // in order
        break;
      }
      queue.Serve(*next, clock_.Now());
      queue.Charge(*next, static_cast<double>(1 + random.Below(100)));
      queue.Leave(*next);
      turns_left.erase(next);
      waiting.erase(std::find(waiting.begin(), waiting.end(), next));
      ++taken;
      for (auto& [item, left] : turns_left) ASSERT_GT(--left, 0);
    }
    EXPECT_TRUE(waiting.empty());
    EXPECT_EQ(taken + gone, static_cast<int64_t>(items.size()));
  }
}

}  // namespace
}  // namespace aft::server
