#include "model/runtime/snapshot.h"

#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/api/snapshot_bytes.h"
#include "model/state/xxhash64.h"

namespace aft {
namespace {

constexpr char kMagic[8] = {'A', 'F', 'T', 'S', 'T', 'A', 'T', 'E'};
// Must change when the header changes, or when a mixer's state changes its meaning but not its
// layout.
constexpr uint32_t kVersion = 4;
constexpr size_t kChecksumBytes = sizeof(uint64_t);

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t reserved;  // 0
  uint64_t model;
  uint64_t layout;
  int64_t position;
};
static_assert(sizeof(Header) == 40 && std::is_trivially_copyable_v<Header>, "written as it is");
static_assert(sizeof(Header) + kChecksumBytes == kSnapshotFrameBytes, "what budgets keep for it");

}  // namespace

uint64_t SnapshotFingerprint(uint64_t model, uint64_t layout, absl::string_view weight_format) {
  return XxHash64(absl::StrCat(kVersion, " ", model, " ", layout, " ", weight_format), 0);
}

int64_t SnapshotHeaderBytes() { return sizeof(Header); }

std::string BeginSnapshot(uint64_t model, uint64_t layout, int64_t position, int64_t state_bytes) {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.model = model;
  header.layout = layout;
  header.position = position;
  std::string snapshot(sizeof(header) + static_cast<size_t>(state_bytes) + kChecksumBytes, '\0');
  std::memcpy(snapshot.data(), &header, sizeof(header));
  return snapshot;
}

void SealSnapshot(std::string* snapshot) {
  const size_t covered = snapshot->size() - kChecksumBytes;
  const uint64_t checksum = XxHash64({snapshot->data(), covered}, 0);
  std::memcpy(snapshot->data() + covered, &checksum, kChecksumBytes);
}

absl::StatusOr<OpenedSnapshot> OpenSnapshot(absl::string_view snapshot, uint64_t model,
                                            uint64_t layout) {
  const auto error = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("snapshot: ", what...));
  };
  Header header = {};
  if (snapshot.size() < sizeof(header) + kChecksumBytes ||
      snapshot.substr(0, sizeof(kMagic)) != absl::string_view(kMagic, sizeof(kMagic))) {
    return error("these bytes are not a snapshot");
  }
  std::memcpy(&header, snapshot.data(), sizeof(header));
  if (header.version != kVersion) {
    return error("version ", header.version, ", this program reads ", kVersion);
  }
  const size_t covered = snapshot.size() - kChecksumBytes;
  uint64_t checksum = 0;
  std::memcpy(&checksum, snapshot.data() + covered, kChecksumBytes);
  if (checksum != XxHash64(snapshot.substr(0, covered), 0)) return error("damaged");
  if (header.model != model) return error("of another model");
  if (header.layout != layout) return error("of another state layout");
  if (header.position < 0) return error("damaged");
  return OpenedSnapshot{.position = header.position,
                        .state = snapshot.substr(sizeof(header), covered - sizeof(header))};
}

}  // namespace aft
