#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/scheduling/time.h"

namespace aft::server {

// The record of one competitor of FairShares: its waiting items and the service that it has had.
struct FairShare {
  size_t waiting = 0;  // items
  size_t serving = 0;
  size_t index = 0;                          // in FairShares::backlogged_, while items wait
  bool idle = false;                         // in FairShares::idle_
  std::list<std::string>::iterator idle_at;  // the place there
  double virtual_time = 0;
  uint64_t epoch = 0;   // in which virtual_time counts
  TimePoint last_turn;  // when one of its items was served last

  void Serve(TimePoint now) {
    ++serving;
    last_turn = now;
  }
};

// The records of all competitors on one level of a FairQueue: all clients, or all users of one
// client. The comment of FairQueue states the rule. Thread-compatible.
template <typename Share>
class FairShares {
 public:
  // The number of competitors without items that are remembered.
  static constexpr size_t kMaxIdle = 1024;

  // The record of the competitor of that name. Its address does not change until its last item
  // leaves.
  Share& operator[](const std::string& name) { return shares_[name]; }

  // One more of its items waits.
  void StartWaiting(Share& share) {
    if (share.waiting++ > 0) return;
    if (backlogged_.empty()) {
      Forget();
    } else {
      double least = VirtualTime(*backlogged_.front());
      for (const Share* other : backlogged_) least = std::min(least, VirtualTime(*other));
      Raise(share, std::max(least, VirtualTime(share)));
    }
    share.index = backlogged_.size();
    backlogged_.push_back(&share);
  }

  // One of its items does not wait any more.
  void StopWaiting(Share& share) {
    if (--share.waiting > 0) return;
    backlogged_[share.index] = backlogged_.back();
    backlogged_[share.index]->index = share.index;
    backlogged_.pop_back();
  }

  // If `share`, which has that name, has no items any more, it is from now on only remembered.
  void DropIfEmpty(const std::string& name, Share& share) {
    if (share.waiting + share.serving > 0) return;
    if (share.idle) return idle_.splice(idle_.end(), idle_, share.idle_at);
    share.idle = true;
    share.idle_at = idle_.insert(idle_.end(), name);
    DropIdle(kMaxIdle);
  }

  void Charge(Share& share, double service) { Raise(share, VirtualTime(share) + service); }

  double VirtualTime(const Share& share) const {
    return share.epoch == epoch_ ? share.virtual_time : 0;
  }

  // The competitors with items that wait.
  const std::vector<Share*>& backlogged() const { return backlogged_; }

 private:
  void Raise(Share& share, double virtual_time) {
    share.virtual_time = virtual_time;
    share.epoch = epoch_;
  }

  // Nothing waited, so the service until now delayed no competitor and is forgotten.
  void Forget() {
    ++epoch_;
    DropIdle(0);
  }

  // Forgets all competitors without items but the last `keep`.
  void DropIdle(size_t keep) {
    while (idle_.size() > keep) {
      const auto share = shares_.find(idle_.front());
      idle_.pop_front();
      share->second.idle = false;
      if (share->second.waiting + share->second.serving == 0) shares_.erase(share);
    }
  }

  std::unordered_map<std::string, Share> shares_;
  std::vector<Share*> backlogged_;
  // The names of those whose last item left, in the order in which they left last. They may have
  // come back.
  std::list<std::string> idle_;
  uint64_t epoch_ = 0;  // ends when nothing waits
};

}  // namespace aft::server
