#pragma once

#include <cstdint>
#include <unordered_map>

#include "server/scheduling/fair_queue.h"
#include "server/scheduling/sequence.h"

namespace aft::server {

// Which sequences are firm: within the quota of their client, and not in slots that are reserved
// for others. The rule is part of ContinuousScheduler's comment. Thread-compatible.
class SlotQuotas {
 public:
  struct Options {
    int32_t slots = 1;
    int32_t max_client_slots = 0;  // quota of a client that has none of its own; 0: all slots
    int32_t reserved_slots = 0;    // for interactive sequences; below slots
    bool strict = false;           // slots that are kept for others stay free
  };

  // `queue` must outlive this; every sequence has an account there.
  SlotQuotas(const Options& options, const FairQueue& queue) : options_(options), queue_(queue) {}

  // The largest group that can ever have its slots. `max_slots`: as of SequenceOwner.
  int32_t MaxGroup(int32_t max_slots, ServiceClass service_class) const;

  // Nobody owns a slot.
  void Clear();
  // The sequence owns a slot, after those that were added before. Whether it is firm there.
  bool Add(const Sequence& sequence);
  // It is parked. REQUIRES: it is not firm.
  void RemoveParked(const Sequence& sequence);

  // Whether the sequence, and those that follow it, may have slots of others. The first of a group
  // speaks for it: what goes beyond the quota then is batch work. Where quotas are strict there is
  // no such work, and all must have room in them.
  bool GroupMayBeFirm(const Sequence& sequence) const {
    return MayBeFirm(sequence, options_.strict ? sequence.group_size() : 1);
  }

  // Its client's next one would not be firm.
  bool HasItsQuota(const Sequence& sequence) const;

  // With strict quotas: slots that the client has too many when the sequence gets its own, and that
  // others have too many which are not interactive. Not above 0: none.
  int32_t BeyondQuota(const Sequence& sequence) const;
  int32_t BeyondOpenSlots(const Sequence& sequence) const;

 private:
  int32_t Quota(int32_t own) const;
  int32_t OpenSlots(ServiceClass service_class) const;
  bool MayBeFirm(const Sequence& sequence, int32_t count) const;

  const Options options_;
  const FairQueue& queue_;
  std::unordered_map<const FairAccount*, int32_t> firm_;  // of each client
  int32_t firm_others_ = 0;                               // firm ones that are not interactive
  int32_t others_ = 0;                                    // all that are not interactive
};

}  // namespace aft::server
