// Of ContinuousScheduler: sequences that wait for slots as one and share the reading of a prompt.

#include <algorithm>
#include <utility>

#include "server/scheduling/continuous_scheduler.h"

namespace aft::server {

int32_t ContinuousScheduler::MaxGroup(int32_t max_slots, ServiceClass service_class) const {
  if (!options_.strict_quotas) return options_.slots;
  return std::min(Quota(max_slots), OpenSlots(service_class));
}

// The first of a group speaks for it: what goes beyond the quota then is batch work. Where quotas
// are strict there is no such work, and all must have room in them.
bool ContinuousScheduler::GroupMayBeFirm(const Sequence& sequence) const {
  return MayBeFirm(sequence, options_.strict_quotas ? sequence.group_size() : 1);
}

// Fills victims_ with as many as `next` lacks slots. False: there are not enough, or it lacks none.
bool ContinuousScheduler::ChooseVictims(const Sequence& next, bool by_age) {
  int32_t own = BeyondQuota(next);  // of the client itself
  const int32_t lacking = std::max({next.group_size() - slots_.free(), own, BeyondOpenSlots(next)});
  victims_.clear();
  if (lacking <= 0 || lacking > ParkingRoom()) return false;
  while (static_cast<int32_t>(victims_.size()) < lacking) {
    Sequence* const victim = ChooseVictim(next, by_age, own-- > 0);
    if (victim == nullptr) return false;
    victims_.push_back(victim);
  }
  return true;
}

// Batch work that may have a slot which is kept for a group. Null: none waits; or it could not be
// parked for that group; or what has been lent is all that the group still lacks.
Sequence* ContinuousScheduler::Borrower(TimePoint now) {
  if (options_.strict_quotas || !GroupMayBeFirm(*kept_for_)) return nullptr;
  const auto lent =
      static_cast<int32_t>(std::count_if(live_.begin(), live_.end(), [](const Sequence* sequence) {
        return GoesOn(*sequence) && !sequence->firm_;
      }));
  if (lent >= ParkingRoom() || slots_.free() + lent >= kept_for_->group_size()) return nullptr;
  return static_cast<Sequence*>(
      queue_.Next(now, [](const FairItem& item) -> std::optional<ServiceClass> {
        const bool may = item.service_class() == ServiceClass::kBatch &&
                         static_cast<const Sequence&>(item).group_size() == 1;
        return may ? std::optional(ServiceClass::kBatch) : std::nullopt;
      }));
}

// One that follows is removed: the others go on without it.
void ContinuousScheduler::Leave(Sequence& follower) {
  Sequence& leader = *std::exchange(follower.leader_, nullptr);
  std::vector<Sequence*>& others = leader.followers_;
  others.erase(std::find(others.begin(), others.end(), &follower));
  if (others.empty() && leader.slot_ >= 0) --unforked_;
}

// One that others follow is removed.
void ContinuousScheduler::Abandon(Sequence& leader) {
  if (leader.slot_ >= 0) --unforked_;
  for (Sequence* follower : std::exchange(leader.followers_, {})) {
    follower->leader_ = nullptr;
    abandoned_.push_back(follower);
  }
}

void ContinuousScheduler::ForkGroups() {
  for (Sequence* sequence : live_) {
    if (sequence->followers_.empty() || sequence->readable() > 0) continue;
    if (sequence->flights_ == 0) Fork(*sequence);
  }
}

void ContinuousScheduler::Fork(Sequence& leader) {
  --unforked_;
  leader.rows_left_ = std::max<int64_t>(leader.rows_left_, 1);  // the fork itself comes first
  for (Sequence* follower : std::exchange(leader.followers_, {})) {
    follower->leader_ = nullptr;
    follower->phase_ = Sequence::Phase::kPrompt;
    placement_.forked.push_back({&leader, follower});
  }
}

}  // namespace aft::server
