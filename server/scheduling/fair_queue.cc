#include "server/scheduling/fair_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace aft::server {

FairItem::FairItem(std::string client, double weight, ServiceClass service_class)
    : client_(std::move(client)), weight_(weight), class_(service_class) {
  AFT_CHECK(weight > 0);
}

void FairQueue::Push(FairItem& item, TimePoint now) {
  AFT_CHECK(item.state_ == FairItem::State::kOut);
  if (waiting_ == 0) Forget();
  item.account_ = &accounts_[item.client_];
  item.account_->weight = item.weight_;
  item.order_ = ++arrivals_;
  StartWaiting(item, now).push_back(&item);
}

void FairQueue::PushFront(FairItem& item, TimePoint now) {
  AFT_CHECK(item.state_ == FairItem::State::kServed);
  if (waiting_ == 0) Forget();
  --item.account_->serving;
  StartWaiting(item, now).push_front(&item);
}

void FairQueue::PushAgain(FairItem& item) {
  AFT_CHECK(item.state_ == FairItem::State::kOut && item.order_ > 0);
  if (waiting_ == 0) Forget();
  item.account_ = &accounts_[item.client_];
  InsertInOrder(item, StartWaiting(item, item.since_));
}

FairItem* FairQueue::Next(TimePoint now) const {
  return Next(now, [](const FairItem& item) { return item.service_class(); });
}

FairItem* FairQueue::Next(TimePoint now, ClassOf class_of) const {
  FairItem* best = nullptr;
  std::tuple<ServiceClass, double, TimePoint, uint64_t> best_rank;
  for (const FairAccount* account : backlogged_) {
    for (const std::deque<FairItem*>& line : account->lines) {
      if (line.empty()) continue;
      FairItem& item = *line.front();
      const std::optional<ServiceClass> base = class_of(item);
      if (!base) continue;
      const TimePoint since = std::max(item.since_, account->last_turn);
      const bool overdue = age_ > Duration::zero() && now - since >= kOverdueAges * age_;
      const std::tuple rank(Aged(item, *base, now), overdue ? -1.0 : VirtualTime(*account),
                            overdue ? since : TimePoint(), item.order_);
      if (best != nullptr && rank >= best_rank) continue;
      best = &item;
      best_rank = rank;
    }
  }
  return best;
}

void FairQueue::Serve(FairItem& item, TimePoint now) {
  AFT_CHECK(item.state_ == FairItem::State::kWaiting);
  StopWaiting(item);
  item.state_ = FairItem::State::kServed;
  ++item.account_->serving;
  item.account_->last_turn = now;
}

void FairQueue::Leave(FairItem& item) {
  if (item.state_ == FairItem::State::kOut) return;
  FairAccount& account = *item.account_;
  if (item.state_ == FairItem::State::kWaiting) {
    StopWaiting(item);
  } else {
    --account.serving;
  }
  item.state_ = FairItem::State::kOut;
  item.account_ = nullptr;
  if (account.waiting + account.serving > 0 || account.idle) return;
  account.idle = true;
  idle_.push_back(item.client_);
  DropIdle(kMaxIdle);
}

void FairQueue::SetClass(FairItem& item, ServiceClass service_class) {
  if (item.class_ == service_class) return;
  const ServiceClass before = std::exchange(item.class_, service_class);
  if (item.state_ != FairItem::State::kWaiting) return;
  std::deque<FairItem*>& from = item.account_->lines[static_cast<size_t>(before)];
  from.erase(std::find(from.begin(), from.end(), &item));
  InsertInOrder(item, item.account_->lines[static_cast<size_t>(service_class)]);
}

void FairQueue::InsertInOrder(FairItem& item, std::deque<FairItem*>& line) {
  line.insert(std::find_if(line.begin(), line.end(),
                           [&](const FairItem* other) { return other->order_ > item.order_; }),
              &item);
}

void FairQueue::Charge(FairItem& item, double service) {
  FairAccount& account = *item.account_;
  Raise(account, VirtualTime(account) + service / item.weight_);
}

ServiceClass FairQueue::Aged(const FairItem& item, ServiceClass base, TimePoint now) const {
  if (age_ == Duration::zero()) return base;
  const auto better = std::min<int64_t>((now - item.since_) / age_, static_cast<int64_t>(base));
  return static_cast<ServiceClass>(static_cast<int64_t>(base) - std::max<int64_t>(better, 0));
}

bool FairQueue::LessServed(const FairItem& a, const FairItem& b) const {
  return a.account_ != b.account_ && VirtualTime(*a.account_) < VirtualTime(*b.account_);
}

TimePoint FairQueue::oldest() const {
  TimePoint oldest = TimePoint::max();
  for (const FairAccount* account : backlogged_) {
    for (const std::deque<FairItem*>& line : account->lines) {
      if (!line.empty()) oldest = std::min(oldest, line.front()->since_);
    }
  }
  return oldest;
}

void FairQueue::Raise(FairAccount& account, double virtual_time) {
  account.virtual_time = virtual_time;
  account.epoch = epoch_;
}

std::deque<FairItem*>& FairQueue::StartWaiting(FairItem& item, TimePoint now) {
  FairAccount& account = *item.account_;
  if (account.waiting == 0) {
    if (!backlogged_.empty()) {
      double least = VirtualTime(*backlogged_.front());
      for (const FairAccount* other : backlogged_) least = std::min(least, VirtualTime(*other));
      Raise(account, std::max(least, VirtualTime(account)));
    }
    account.index = backlogged_.size();
    backlogged_.push_back(&account);
  }
  ++account.waiting;
  ++waiting_;
  item.state_ = FairItem::State::kWaiting;
  item.since_ = now;
  return account.lines[static_cast<size_t>(item.class_)];
}

void FairQueue::StopWaiting(FairItem& item) {
  FairAccount& account = *item.account_;
  std::deque<FairItem*>& line = account.lines[static_cast<size_t>(item.class_)];
  line.erase(std::find(line.begin(), line.end(), &item));
  --waiting_;
  if (--account.waiting > 0) return;
  backlogged_[account.index] = backlogged_.back();
  backlogged_[account.index]->index = account.index;
  backlogged_.pop_back();
}

// Nothing waits: whatever was used until now took nothing from anybody.
void FairQueue::Forget() {
  ++epoch_;
  DropIdle(0);
}

// Of the clients that have left, all but the last `keep`.
void FairQueue::DropIdle(size_t keep) {
  while (idle_.size() > keep) {
    const auto account = accounts_.find(idle_.front());
    idle_.pop_front();
    account->second.idle = false;
    if (account->second.waiting + account->second.serving == 0) accounts_.erase(account);
  }
}

}  // namespace aft::server
