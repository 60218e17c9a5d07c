#include "server/scheduling/fair_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace aft::server {

FairItem::FairItem(std::string client, double weight, ServiceClass service_class, std::string user)
    : client_(std::move(client)), user_(std::move(user)), weight_(weight), class_(service_class) {
  AFT_CHECK(weight > 0);
}

void FairQueue::Push(FairItem& item, TimePoint now) {
  AFT_CHECK(item.state_ == FairItem::State::kOut);
  Enter(item);
  item.account_->weight = item.weight_;
  item.order_ = ++arrivals_;
  StartWaiting(item, now).push_back(&item);
}

void FairQueue::PushFront(FairItem& item, TimePoint now) {
  AFT_CHECK(item.state_ == FairItem::State::kServed);
  --item.account_->serving;
  --item.user_account_->serving;
  StartWaiting(item, now).push_front(&item);
}

void FairQueue::PushAgain(FairItem& item) {
  AFT_CHECK(item.state_ == FairItem::State::kOut && item.order_ > 0);
  Enter(item);
  InsertInOrder(item, StartWaiting(item, item.since_));
}

FairItem* FairQueue::Next(TimePoint now) const {
  return Next(now, [](const FairItem& item) { return item.service_class(); });
}

FairItem* FairQueue::Next(TimePoint now, ClassOf class_of) const {
  FairItem* best = nullptr;
  std::tuple<ServiceClass, Standing, uint64_t> best_rank;
  for (const FairAccount* account : clients_.backlogged()) {
    for (size_t i = 0; i < kServiceClasses; ++i) {
      const Front front = FrontOf(*account, i, now);
      if (front.next == nullptr) continue;
      const std::optional<ServiceClass> base = class_of(*front.next);
      if (!base) continue;
      const FairItem& first = *front.first;
      const std::tuple rank(Aged(first, *base, now),
                            StandingOf(*account, clients_.VirtualTime(*account), first.since_, now),
                            first.order_);
      if (best != nullptr && rank >= best_rank) continue;
      best = front.next;
      best_rank = rank;
    }
  }
  return best;
}

FairQueue::Front FairQueue::FrontOf(const FairAccount& account, size_t service_class,
                                    TimePoint now) const {
  Front front;
  std::pair<Standing, uint64_t> best_rank;
  for (const FairUser* user : account.users.backlogged()) {
    if (user->lines[service_class].empty()) continue;
    FairItem& item = *user->lines[service_class].front();
    const std::pair rank(StandingOf(*user, account.users.VirtualTime(*user), item.since_, now),
                         item.order_);
    if (front.next == nullptr || rank < best_rank) {
      front.next = &item;
      best_rank = rank;
    }
    if (front.first == nullptr || item.order_ < front.first->order_) front.first = &item;
  }
  return front;
}

FairQueue::Standing FairQueue::StandingOf(const FairShare& share, double virtual_time,
                                          TimePoint since, TimePoint now) const {
  since = std::max(since, share.last_turn);
  const bool overdue = age_ > Duration::zero() && now - since >= kOverdueAges * age_;
  return overdue ? Standing(-1, since) : Standing(virtual_time, TimePoint());
}

void FairQueue::Serve(FairItem& item, TimePoint now) {
  AFT_CHECK(item.state_ == FairItem::State::kWaiting);
  StopWaiting(item);
  item.state_ = FairItem::State::kServed;
  item.account_->Serve(now);
  item.user_account_->Serve(now);
}

void FairQueue::Leave(FairItem& item) {
  if (item.state_ == FairItem::State::kOut) return;
  if (item.state_ == FairItem::State::kWaiting) {
    StopWaiting(item);
  } else {
    --item.account_->serving;
    --item.user_account_->serving;
  }
  item.state_ = FairItem::State::kOut;
  FairAccount& account = *std::exchange(item.account_, nullptr);
  account.users.DropIfEmpty(item.user_, *std::exchange(item.user_account_, nullptr));
  clients_.DropIfEmpty(item.client_, account);
}

void FairQueue::SetClass(FairItem& item, ServiceClass service_class) {
  if (item.class_ == service_class) return;
  const ServiceClass before = std::exchange(item.class_, service_class);
  if (item.state_ != FairItem::State::kWaiting) return;
  auto& lines = item.user_account_->lines;
  std::deque<FairItem*>& from = lines[static_cast<size_t>(before)];
  from.erase(std::find(from.begin(), from.end(), &item));
  InsertInOrder(item, lines[static_cast<size_t>(service_class)]);
}

void FairQueue::InsertInOrder(FairItem& item, std::deque<FairItem*>& line) {
  // Items of PushFront are not in order, so the search begins at the end.
  const auto last = std::find_if(line.rbegin(), line.rend(), [&](const FairItem* other) {
    return other->order_ < item.order_;
  });
  line.insert(last.base(), &item);
}

void FairQueue::Charge(FairItem& item, double service) {
  clients_.Charge(*item.account_, service / item.weight_);
  item.account_->users.Charge(*item.user_account_, service / item.weight_);
}

ServiceClass FairQueue::Aged(const FairItem& item, ServiceClass base, TimePoint now) const {
  if (age_ == Duration::zero()) return base;
  const auto better = std::min<int64_t>((now - item.since_) / age_, static_cast<int64_t>(base));
  return static_cast<ServiceClass>(static_cast<int64_t>(base) - std::max<int64_t>(better, 0));
}

bool FairQueue::LessServed(const FairItem& a, const FairItem& b) const {
  return a.account_ != b.account_ &&
         clients_.VirtualTime(*a.account_) < clients_.VirtualTime(*b.account_);
}

TimePoint FairQueue::oldest() const {
  TimePoint oldest = TimePoint::max();
  for (const FairAccount* account : clients_.backlogged()) {
    for (const FairUser* user : account->users.backlogged()) {
      for (const std::deque<FairItem*>& line : user->lines) {
        for (const FairItem* item : line) oldest = std::min(oldest, item->since_);
      }
    }
  }
  return oldest;
}

void FairQueue::Enter(FairItem& item) {
  item.account_ = &clients_[item.client_];
  item.user_account_ = &item.account_->users[item.user_];
}

std::deque<FairItem*>& FairQueue::StartWaiting(FairItem& item, TimePoint now) {
  clients_.StartWaiting(*item.account_);
  item.account_->users.StartWaiting(*item.user_account_);
  ++waiting_;
  item.state_ = FairItem::State::kWaiting;
  item.since_ = now;
  return item.user_account_->lines[static_cast<size_t>(item.class_)];
}

void FairQueue::StopWaiting(FairItem& item) {
  std::deque<FairItem*>& line = item.user_account_->lines[static_cast<size_t>(item.class_)];
  line.erase(std::find(line.begin(), line.end(), &item));
  --waiting_;
  clients_.StopWaiting(*item.account_);
  item.account_->users.StopWaiting(*item.user_account_);
}

}  // namespace aft::server
