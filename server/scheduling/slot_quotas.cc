#include "server/scheduling/slot_quotas.h"

#include <algorithm>

namespace aft::server {

int32_t SlotQuotas::MaxGroup(int32_t max_slots, ServiceClass service_class) const {
  if (!options_.strict) return options_.slots;
  return std::min(Quota(max_slots), OpenSlots(service_class));
}

void SlotQuotas::Clear() {
  firm_.clear();
  firm_others_ = others_ = 0;
}

bool SlotQuotas::Add(const Sequence& sequence) {
  const bool interactive = sequence.service_class() == ServiceClass::kInteractive;
  const bool firm = MayBeFirm(sequence, 1);
  if (!interactive) ++others_;
  if (!firm) return false;
  ++firm_[queue_.account(sequence)];
  if (!interactive) ++firm_others_;
  return true;
}

void SlotQuotas::RemoveParked(const Sequence& sequence) {
  if (sequence.service_class() != ServiceClass::kInteractive) --others_;
}

bool SlotQuotas::HasItsQuota(const Sequence& sequence) const {
  const auto firm = firm_.find(queue_.account(sequence));
  return firm != firm_.end() && firm->second >= Quota(sequence.max_slots());
}

int32_t SlotQuotas::BeyondQuota(const Sequence& sequence) const {
  if (!options_.strict) return 0;
  const auto serving = static_cast<int32_t>(queue_.serving(sequence));
  return serving + sequence.group_size() - Quota(sequence.max_slots());
}

int32_t SlotQuotas::BeyondOpenSlots(const Sequence& sequence) const {
  const ServiceClass service_class = sequence.service_class();
  if (!options_.strict || service_class == ServiceClass::kInteractive) return 0;
  return others_ + sequence.group_size() - OpenSlots(service_class);
}

// `own` is the client's own quota, or 0.
int32_t SlotQuotas::Quota(int32_t own) const {
  if (own != 0) return own;
  return options_.max_client_slots != 0 ? options_.max_client_slots : options_.slots;
}

// The slots that are not reserved for other classes.
int32_t SlotQuotas::OpenSlots(ServiceClass service_class) const {
  return options_.slots -
         (service_class == ServiceClass::kInteractive ? 0 : options_.reserved_slots);
}

// Whether `count` more sequences of its client and class would be firm.
bool SlotQuotas::MayBeFirm(const Sequence& sequence, int32_t count) const {
  const ServiceClass service_class = sequence.service_class();
  if (service_class == ServiceClass::kBatch) return false;
  const auto own = firm_.find(queue_.account(sequence));
  const int32_t firm = own != firm_.end() ? own->second : 0;
  if (firm + count > Quota(sequence.max_slots())) return false;
  return service_class == ServiceClass::kInteractive ||
         firm_others_ + count <= OpenSlots(service_class);
}

}  // namespace aft::server
