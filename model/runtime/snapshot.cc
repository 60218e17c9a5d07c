#include "model/runtime/snapshot.h"

#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/api/snapshot_bytes.h"
#include "model/sampling/penalties.h"
#include "model/state/xxhash64.h"

namespace aft {
namespace {

constexpr char kMagic[8] = {'A', 'F', 'T', 'S', 'T', 'A', 'T', 'E'};
// Moves when the header, or what a mixer keeps under an unchanged layout, changes its meaning.
constexpr uint32_t kVersion = 3;
constexpr size_t kChecksumBytes = sizeof(uint64_t);

struct Header {
  char magic[8];
  uint32_t version;
  int32_t last_sampled;
  uint64_t model;
  uint64_t layout;
  int64_t position;
  int64_t state_bytes;
  uint64_t sampled;
  int64_t counts_bytes;
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>, "written as it is");
static_assert(sizeof(Header) + kChecksumBytes == kSnapshotFrameBytes, "what budgets keep for it");

}  // namespace

uint64_t SnapshotFingerprint(uint64_t model, uint64_t layout, absl::string_view weight_format) {
  return XxHash64(absl::StrCat(kVersion, " ", model, " ", layout, " ", weight_format), 0);
}

int64_t SnapshotHeaderBytes() { return sizeof(Header); }

std::string BeginSnapshot(uint64_t model, uint64_t layout, const SequenceRecord& record,
                          int64_t state_bytes, int64_t counts) {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.model = model;
  header.layout = layout;
  header.state_bytes = state_bytes;
  header.position = record.next_position;
  header.sampled = record.sampled;
  header.last_sampled = record.last_sampled;
  header.counts_bytes = counts * static_cast<int64_t>(sizeof(TokenCount));
  const auto body = static_cast<size_t>(state_bytes + header.counts_bytes);
  std::string snapshot(sizeof(header) + body + kChecksumBytes, '\0');
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
    return error("these bytes are not one");
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
  OpenedSnapshot opened;
  const absl::string_view body = snapshot.substr(sizeof(header), covered - sizeof(header));
  const auto body_bytes = static_cast<int64_t>(body.size());
  if (header.state_bytes < 0 || header.state_bytes > body_bytes ||
      header.counts_bytes != body_bytes - header.state_bytes || header.position < 0) {
    return error("damaged");
  }
  opened.state = body.substr(0, static_cast<size_t>(header.state_bytes));
  opened.counts = body.substr(opened.state.size());
  opened.record.next_position = header.position;
  opened.record.sampled = header.sampled;
  opened.record.last_sampled = header.last_sampled;
  return opened;
}

}  // namespace aft
