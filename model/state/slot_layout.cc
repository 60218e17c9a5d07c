#include "model/state/slot_layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "model/state/aligned_buffer.h"  // RoundUpToLine
#include "model/state/xxhash64.h"

namespace aft {

SlotLayout::SlotLayout(const std::vector<StateSpec>& layers) {
  for (const StateSpec& layer : layers) {
    int64_t covered = 0;
    for (StateSection section : layer.sections) {
      AFT_CHECK(section.offset == covered && section.floats % section.parts == 0);
      covered += section.floats;
      grows_ = grows_ || section.granule_tokens > 0;
      section.offset += floats_;
      sections_.push_back(std::move(section));
    }
    AFT_CHECK(covered == layer.floats);
    layer_offsets_.push_back(floats_);
    floats_ += RoundUpToLine(layer.floats);
  }
}

void SlotLayout::ForEachUsed(int64_t position, absl::FunctionRef<void(int64_t, int64_t)> fn) const {
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

int64_t SlotLayout::UsedBytes(int64_t position) const {
  int64_t used = 0;
  ForEachUsed(position, [&](int64_t, int64_t floats) { used += floats; });
  return used * static_cast<int64_t>(sizeof(float));
}

uint64_t SlotLayout::fingerprint() const {
  std::string layout;
  for (const StateSection& section : sections_) {
    absl::StrAppend(&layout, section.name, " ", section.offset, " ", section.floats, " ",
                    section.parts, " ", section.granule_tokens, " ", section.granule_floats, "\n");
  }
  return XxHash64(layout, 0);
}

}  // namespace aft
