#include "model/state/slot_layout.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "model/state/aligned_buffer.h"  // RoundUpToLine
#include "model/state/xxhash64.h"

namespace aft {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

// The floats of one part that a sequence of `position` tokens uses. REQUIRES: position > 0.
int64_t UsedFloats(const StateSection& section, int64_t position) {
  const int64_t part = section.floats / section.parts;
  if (!section.grows) return part;
  const int64_t granules = (position + section.granule_tokens - 1) / section.granule_tokens;
  return std::min(granules * section.granule_floats, part);
}

// Clears the lanes of a granule from that of token `written` on.
void ClearLanes(const StateSection& section, int64_t written, char* granule) {
  const int64_t width = section.token_bytes / kFloatBytes;
  const int64_t blocks = section.granule_floats / (width * section.lanes);
  for (int64_t block = written / section.lanes; block < blocks; ++block) {
    const int64_t lane = std::max<int64_t>(written - block * section.lanes, 0);
    for (int64_t i = 0; i < width; ++i) {
      char* const row = granule + (block * width + i) * section.lanes * kFloatBytes;
      std::memset(row + lane * kFloatBytes, 0,
                  static_cast<size_t>((section.lanes - lane) * kFloatBytes));
    }
  }
}

// Clears the unwritten places of one part, of which `bytes` are in use.
void ClearPart(const StateSection& section, int64_t position, char* part, int64_t bytes) {
  const int64_t granule_bytes = section.granule_floats * kFloatBytes;
  if (section.lanes == 1) {
    const int64_t room = bytes / granule_bytes * section.granule_tokens;
    const int64_t written = std::min(position, room) * section.token_bytes;
    std::memset(part + written, 0, static_cast<size_t>(bytes - written));
    return;
  }
  for (int64_t i = 0; i < bytes / granule_bytes; ++i) {
    const int64_t written = position - i * section.granule_tokens;
    ClearLanes(section, std::clamp<int64_t>(written, 0, section.granule_tokens),
               part + i * granule_bytes);
  }
}

}  // namespace

SlotLayout::SlotLayout(const std::vector<StateSpec>& layers) {
  for (const StateSpec& layer : layers) {
    int64_t covered = 0;
    for (StateSection section : layer.sections) {
      AFT_CHECK(section.offset == covered && section.floats % section.parts == 0);
      AFT_CHECK(section.granule_tokens == 0 || section.granule_floats > 0);
      covered += section.floats;
      grows_ = grows_ || section.grows;
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
    if (!section.grows) {
      fn(section.offset, section.floats);
      continue;
    }
    const int64_t part = section.floats / section.parts;
    const int64_t used = UsedFloats(section, position);
    for (int64_t i = 0; i < section.parts; ++i) fn(section.offset + i * part, used);
  }
}

void SlotLayout::ClearUnwritten(int64_t position, char* used) const {
  if (position == 0) return;
  for (const StateSection& section : sections_) {
    const int64_t bytes = UsedFloats(section, position) * kFloatBytes;  // of a part
    for (int64_t i = 0; i < section.parts; ++i, used += bytes) {
      if (section.granule_tokens > 0) ClearPart(section, position, used, bytes);
    }
  }
}

int64_t SlotLayout::UsedBytes(int64_t position) const {
  int64_t used = 0;
  ForEachUsed(position, [&](int64_t, int64_t floats) { used += floats; });
  return used * kFloatBytes;
}

uint64_t SlotLayout::fingerprint() const {
  std::string layout;
  for (const StateSection& section : sections_) {
    absl::StrAppend(&layout, section.name, " ", section.offset, " ", section.floats, " ",
                    section.parts, " ", section.granule_tokens, " ", section.granule_floats, " ",
                    section.token_bytes, " ", section.lanes, " ", section.grows, "\n");
  }
  return XxHash64(layout, 0);
}

}  // namespace aft
