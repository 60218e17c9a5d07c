#pragma once

#include <cstdint>
#include <unordered_map>

#include "server/scheduling/fair_queue.h"
#include "server/scheduling/sequence.h"

namespace aft::server {

// Decides which sequences are firm: they are within the quota of their client, and do not use slots
// that are reserved for others. ContinuousScheduler's comment has the rule. Thread-compatible.
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

  // Removes all sequences.
  void Clear();
  // Adds a sequence that owns a slot, after those added before. Returns whether it is firm.
  bool Add(const Sequence& sequence);
  // Removes a sequence that is parked. REQUIRES: it is not firm.
  void RemoveParked(const Sequence& sequence);

  // Whether the sequence and its followers may take slots from batch work. The first sequence of a
  // group decides for all of it; those beyond the quota are then batch work. With strict quotas no
  // sequence may exceed the quota, so the whole group must fit.
  bool GroupMayBeFirm(const Sequence& sequence) const {
    return MayBeFirm(sequence, options_.strict ? sequence.group_size() : 1);
  }

  // Whether its client has all firm sequences that its quota allows.
  bool HasItsQuota(const Sequence& sequence) const;

  // Both return by how many slots a limit would be exceeded if the sequence and its followers got
  // their slots: with strict quotas the quota of its client, or the slots that are open to
  // sequences that are not interactive. 0 or less: the limit would not be exceeded.
  int32_t BeyondQuota(const Sequence& sequence) const;
  int32_t BeyondOpenSlots(const Sequence& sequence) const;

 private:
  int32_t Quota(int32_t own) const;
  int32_t OpenSlots(ServiceClass service_class) const;
  bool MayBeFirm(const Sequence& sequence, int32_t count) const;

  const Options options_;
  const FairQueue& queue_;
  std::unordered_map<const FairAccount*, int32_t> firm_;  // firm sequences of each client
  int32_t firm_others_ = 0;                               // firm sequences that are not interactive
  int32_t others_ = 0;  // all sequences with slots that are not interactive
};

}  // namespace aft::server
