#include "model/state/state_pool.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace aft {

int64_t StatePool::SlotBytes(const std::vector<StateSpec>& layers) {
  int64_t floats = 0;
  for (const StateSpec& layer : layers) floats += RoundUpToLine(layer.floats);
  return floats * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<StatePool> StatePool::Create(const std::vector<StateSpec>& layers, int32_t slots) {
  StatePool pool;
  for (const StateSpec& layer : layers) {
    pool.layer_offsets_.push_back(pool.slot_floats_);
    pool.slot_floats_ += RoundUpToLine(layer.floats);
  }
  pool.slots_ = slots;
  AFT_ASSIGN_OR_RETURN(pool.buffer_,
                       AlignedBuffer::Create(pool.slot_floats_ * slots,
                                             absl::StrCat("states of ", slots, " sequences")));
  return pool;
}

}  // namespace aft
