#include "model/state/state_pool.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace aft {
namespace {

size_t Bytes(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

}  // namespace

absl::StatusOr<StatePool> StatePool::Create(const std::vector<StateSpec>& layers, int32_t slots) {
  StatePool pool;
  pool.layout_ = SlotLayout(layers);
  pool.slots_ = slots;
  const std::string what = absl::StrCat("states of ", slots, " sequences");
  const int64_t floats = pool.layout_.floats() * slots;
  AFT_ASSIGN_OR_RETURN(pool.buffer_, pool.layout_.grows() ? AlignedBuffer::Reserve(floats, what)
                                                          : AlignedBuffer::Create(floats, what));
  return pool;
}

void StatePool::CopySlot(int32_t from, int32_t to, int64_t position) {
  layout_.ForEachUsed(position, [&](int64_t offset, int64_t floats) {
    std::memcpy(Slot(to) + offset, Slot(from) + offset, Bytes(floats));
  });
}

void StatePool::WriteSlot(int32_t slot, int64_t position, char* bytes) const {
  layout_.ForEachUsed(position, [&](int64_t offset, int64_t floats) {
    std::memcpy(bytes, Slot(slot) + offset, Bytes(floats));
    bytes += Bytes(floats);
  });
}

void StatePool::ReadSlot(int32_t slot, int64_t position, const char* bytes) {
  layout_.ForEachUsed(position, [&](int64_t offset, int64_t floats) {
    std::memcpy(Slot(slot) + offset, bytes, Bytes(floats));
    bytes += Bytes(floats);
  });
}

}  // namespace aft
