#include "model/state/state_pool.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/state/xxhash64.h"

namespace aft {
namespace {

size_t Bytes(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

}  // namespace

int64_t StatePool::SlotBytes(const std::vector<StateSpec>& layers) {
  int64_t floats = 0;
  for (const StateSpec& layer : layers) floats += RoundUpToLine(layer.floats);
  return floats * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<StatePool> StatePool::Create(const std::vector<StateSpec>& layers, int32_t slots) {
  StatePool pool;
  bool grows = false;
  for (const StateSpec& layer : layers) {
    int64_t covered = 0;
    for (StateSection section : layer.sections) {
      AFT_CHECK(section.offset == covered && section.floats % section.parts == 0);
      covered += section.floats;
      grows = grows || section.granule_tokens > 0;
      section.offset += pool.slot_floats_;
      pool.sections_.push_back(std::move(section));
    }
    AFT_CHECK(covered == layer.floats);
    pool.layer_offsets_.push_back(pool.slot_floats_);
    pool.slot_floats_ += RoundUpToLine(layer.floats);
  }
  pool.slots_ = slots;
  const std::string what = absl::StrCat("states of ", slots, " sequences");
  const int64_t floats = pool.slot_floats_ * slots;
  AFT_ASSIGN_OR_RETURN(pool.buffer_, grows ? AlignedBuffer::Reserve(floats, what)
                                           : AlignedBuffer::Create(floats, what));
  return pool;
}

void StatePool::ForEachUsed(int64_t position, absl::FunctionRef<void(int64_t, int64_t)> fn) const {
  if (position == 0) return;
  for (const StateSection& section : sections_) {
    if (section.granule_tokens == 0) {
      fn(section.offset, section.floats);
      continue;
    }
    const int64_t part = section.floats / section.parts;
    const int64_t granules = (position + section.granule_tokens - 1) / section.granule_tokens;
    for (int64_t i = 0; i < section.parts; ++i) {
      fn(section.offset + i * part, std::min(granules * section.granule_floats, part));
    }
  }
}

int64_t StatePool::UsedBytes(int64_t position) const {
  int64_t used = 0;
  ForEachUsed(position, [&](int64_t, int64_t floats) { used += floats; });
  return used * static_cast<int64_t>(sizeof(float));
}

void StatePool::CopySlot(int32_t from, int32_t to, int64_t position) {
  ForEachUsed(position, [&](int64_t offset, int64_t floats) {
    std::memcpy(Slot(to) + offset, Slot(from) + offset, Bytes(floats));
  });
}

void StatePool::WriteSlot(int32_t slot, int64_t position, char* bytes) const {
  ForEachUsed(position, [&](int64_t offset, int64_t floats) {
    std::memcpy(bytes, Slot(slot) + offset, Bytes(floats));
    bytes += Bytes(floats);
  });
}

void StatePool::ReadSlot(int32_t slot, int64_t position, const char* bytes) {
  ForEachUsed(position, [&](int64_t offset, int64_t floats) {
    std::memcpy(Slot(slot) + offset, bytes, Bytes(floats));
    bytes += Bytes(floats);
  });
}

uint64_t StatePool::layout_fingerprint() const {
  std::string layout;
  for (const StateSection& section : sections_) {
    absl::StrAppend(&layout, section.name, " ", section.offset, " ", section.floats, " ",
                    section.parts, " ", section.granule_tokens, " ", section.granule_floats, "\n");
  }
  return XxHash64(layout, 0);
}

}  // namespace aft
