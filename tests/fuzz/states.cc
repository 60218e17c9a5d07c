// Sealed states and records of Redis. Bytes that were not sealed here never open.
#include <string>

#include "absl/strings/match.h"
#include "base/check.h"
#include "server/states/redis_record.h"
#include "server/states/state_sealer.h"
#include "tests/fuzz/target.h"

namespace aft::fuzz {

const MemoryBound kMemory = {.fixed = 1 << 20, .per_byte = 16};

}  // namespace aft::fuzz

namespace aft::server {
namespace {

const std::string kId(32, 'a');  // NOLINT(cert-err58-cpp)
constexpr int64_t kNow = 1'700'000'000'000;

SequenceState State() {
  SequenceState state;
  state.snapshot = std::string(200, 's');
  state.tokens = 5;
  state.had = {{.id = 1, .sampled = 2}};
  return state;
}

void CheckError(const absl::Status& status) { AFT_CHECK(absl::IsInvalidArgument(status)); }

void CheckSealed(const StateSealer& sealer, const std::string& good, const std::string& sealed) {
  const auto opened = sealer.Open(sealed);
  if (!opened.ok()) return CheckError(opened.status());
  AFT_CHECK(sealed == good);
}

void CheckRecord(const StateSealer& sealer, const std::string& good, const std::string& record) {
  const auto head = OpenRecordHead(sealer, kId, "ada", record.substr(0, kMaxRecordHead), kNow);
  const auto state = OpenRecord(sealer, kId, "ada", record);
  if (head.ok()) {
    AFT_CHECK(head->file.ttl == std::chrono::hours(1) && head->bytes == StateBytes(State()));
  } else {
    CheckError(head.status());
  }
  if (!state.ok()) return CheckError(state.status());
  // The seal does not cover the summary.
  const size_t state_bytes = static_cast<size_t>(StateSealer::SealedBytes(State()));
  AFT_CHECK(record.size() == good.size() &&
            absl::EndsWith(record, good.substr(good.size() - state_bytes)));
}

}  // namespace
}  // namespace aft::server

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft;
  using namespace aft::server;
  static const auto& sealer = *new StateSealer(*StateSealer::Create({}));
  static const auto& good = *new std::string(*sealer.Seal(State()));
  static const auto& record =
      *new std::string(*SealRecord(sealer,
                                   {.id = kId,
                                    .client = "ada",
                                    .owner = "ada",
                                    .model = "austen",
                                    .ttl = std::chrono::hours(1),
                                    .state = std::make_shared<const SequenceState>(State())},
                                   kNow));
  const std::string bytes(fuzz::AsText(data, size));
  // The input as it is, and in place of a part of valid bytes.
  CheckSealed(sealer, good, bytes);
  CheckSealed(sealer, good, good.substr(0, good.size() - good.size() % (size + 1)) + bytes);
  CheckRecord(sealer, record, bytes);
  CheckRecord(sealer, record, record.substr(0, record.size() - record.size() % (size + 1)) + bytes);
  CheckRecord(sealer, record, bytes + record.substr(record.find("AFTSEAL2")));
}
