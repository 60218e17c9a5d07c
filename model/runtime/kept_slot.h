#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "model/api/model_runner.h"
#include "model/runtime/step_rules.h"
#include "model/state/state_pool.h"

namespace aft {

// What runners over a StatePool keep of a slot.
class KeptSlot final : public KeptState {
 public:
  explicit KeptSlot(StatePool::Kept kept) : kept_(std::move(kept)) {}
  int64_t bytes() const override { return kept_.memory.bytes(); }
  const StatePool::Kept& kept() const { return kept_; }

 private:
  const StatePool::Kept kept_;
};

// ModelRunner::KeepSlot.
inline std::shared_ptr<const KeptState> KeepSlot(const StatePool& states,
                                                 const StepRules& sequences, int32_t slot) {
  absl::StatusOr<StatePool::Kept> kept = states.Keep(slot, sequences.sequence(slot).next_position);
  return kept.ok() ? std::make_shared<const KeptSlot>(*std::move(kept)) : nullptr;
}

// ModelRunner::BindKept, of a slot that was bound.
inline absl::Status TakeBack(const KeptState& kept, int32_t slot, StatePool& states,
                             StepRules& sequences) {
  const StatePool::Kept& state = static_cast<const KeptSlot&>(kept).kept();
  SequenceRecord record;
  record.next_position = state.position;
  sequences.Restore(slot, record);
  return states.TakeBack(slot, state);
}

}  // namespace aft
