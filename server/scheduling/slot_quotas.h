#pragma once

#include <cstdint>
#include <unordered_map>

#include "server/scheduling/fair_queue.h"
#include "server/scheduling/sequence.h"

namespace aft::server {

// Decides which sequences are firm: those within the quota of their client, and not in slots that
// are reserved for others. The rule is in ContinuousScheduler's comment. Thread-compatible.
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

  // The largest group that can ever have its slots. `max_slots`: as in SequenceOwner.
  int32_t MaxGroup(int32_t max_slots, ServiceClass service_class) const;

  // Starts again with no sequence that owns a slot.
  void Clear();
  // The sequence owns a slot, after those that were added before. Returns whether it is firm.
  bool Add(const Sequence& sequence);
  // The sequence is parked. REQUIRES: it is not firm.
  void RemoveParked(const Sequence& sequence);

  // Whether the sequence and its followers may take slots from others. The first of a group decides
  // for all of it: what exceeds the quota then is batch work. With strict quotas there is no such
  // work, and the whole group must have room in them.
  bool GroupMayBeFirm(const Sequence& sequence) const {
    return MayBeFirm(sequence, options_.strict ? sequence.group_size() : 1);
  }

  // Whether the next sequence of its client would not be firm.
  bool HasItsQuota(const Sequence& sequence) const;

  // With strict quotas, the client would exceed its quota by these slots if the sequence and its
  // followers got theirs, and likewise all that are not interactive. 0 or less: no excess.
  int32_t BeyondQuota(const Sequence& sequence) const;
  int32_t BeyondOpenSlots(const Sequence& sequence) const;

 private:
  int32_t Quota(int32_t own) const;
  int32_t OpenSlots(ServiceClass service_class) const;
  bool MayBeFirm(const Sequence& sequence, int32_t count) const;

  const Options options_;
  const FairQueue& queue_;
  std::unordered_map<const FairAccount*, int32_t> firm_;  // firm sequences of each client
  int32_t firm_others_ = 0;                               // those that are not interactive
  int32_t others_ = 0;  // sequences with slots that are not interactive
};

}  // namespace aft::server
