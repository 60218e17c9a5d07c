#include "model/runtime/slot_states.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/runtime/snapshot.h"

namespace aft {
namespace {

class KeptSlot final : public KeptState {
 public:
  KeptSlot(StatePool::Kept kept, uint64_t model) : kept_(std::move(kept)), model_(model) {}
  int64_t bytes() const override { return kept_.bytes(); }
  const StatePool::Kept& kept() const { return kept_; }

  absl::StatusOr<std::string> Snapshot() const override {
    const SlotLayout& layout = *kept_.layout;
    std::string snapshot = BeginSnapshot(model_, layout.fingerprint(), kept_.position,
                                         layout.UsedBytes(kept_.position));
    AFT_RETURN_IF_ERROR(kept_.Write(snapshot.data() + SnapshotHeaderBytes()));
    SealSnapshot(&snapshot);
    return snapshot;
  }

 private:
  const StatePool::Kept kept_;
  const uint64_t model_;
};

absl::StatusOr<int64_t> ReadSnapshot(absl::string_view snapshot, int32_t slot, uint64_t model,
                                     const StepRules& sequences, StatePool& states) {
  const SlotLayout& layout = states.layout();
  AFT_ASSIGN_OR_RETURN(const OpenedSnapshot opened,
                       OpenSnapshot(snapshot, model, layout.fingerprint()));
  const int64_t longest = sequences.limits().max_seq_len;
  if (longest > 0 && opened.position > longest) {
    return absl::InvalidArgumentError(
        absl::StrCat("snapshot: position ", opened.position, " is beyond max_seq_len ", longest));
  }
  if (static_cast<int64_t>(opened.state.size()) != layout.UsedBytes(opened.position)) {
    return absl::InvalidArgumentError("snapshot: the state has another size");
  }
  AFT_RETURN_IF_ERROR(states.ReadSlot(slot, opened.position, opened.state.data()));
  return opened.position;
}

}  // namespace

absl::StatusOr<int64_t> TakeState(const StateSource& from, int32_t slot, uint64_t model,
                                  const StepRules& sequences, StatePool& states) {
  if (const auto* const fork = std::get_if<ForkOf>(&from)) {
    const int64_t position = sequences.sequence(fork->slot).next_position;
    if (fork->slot != slot) AFT_RETURN_IF_ERROR(states.CopySlot(fork->slot, slot, position));
    return position;
  }
  if (const auto* const kept = std::get_if<const KeptState*>(&from)) {
    const StatePool::Kept& state = static_cast<const KeptSlot&>(**kept).kept();
    AFT_RETURN_IF_ERROR(states.TakeBack(slot, state));
    return state.position;
  }
  if (const auto* const snapshot = std::get_if<absl::string_view>(&from)) {
    return ReadSnapshot(*snapshot, slot, model, sequences, states);
  }
  return 0;  // a new sequence: with its first row the old content of the slot is ignored
}

absl::StatusOr<std::shared_ptr<const KeptState>> KeepState(int32_t slot, KeptIn memory,
                                                           uint64_t model,
                                                           const StepRules& sequences,
                                                           const StatePool& states) {
  const int64_t position = sequences.sequence(slot).next_position;
  AFT_ASSIGN_OR_RETURN(StatePool::Kept kept, memory == KeptIn::kHost
                                                 ? states.KeepOnHost(slot, position)
                                                 : states.Keep(slot, position));
  return std::make_shared<const KeptSlot>(std::move(kept), model);
}

}  // namespace aft
