#include "server/states/redis_record.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace aft::server {
namespace {

constexpr absl::string_view kRecordMagic = "AFTREDIS1";
constexpr int kLines = 6;

struct Parts {
  RedisRecord record;  // without its ttl
  int64_t expires = 0;
  std::string lines;
  absl::string_view sealed;  // summary and state
};

std::string LinesOf(const RedisRecord& record, int64_t expires) {
  const StateFolder::File& file = record.file;
  return absl::StrCat(kRecordMagic, "\n", expires, "\n", record.bytes, "\n", file.client, "\n",
                      file.owner, "\n", file.model, "\n");
}

std::string ContextOf(absl::string_view kind, absl::string_view id, absl::string_view lines) {
  return absl::StrCat(kind, "\n", id, "\n", lines);
}

SequenceState SummaryOf(const SequenceState& state) {
  SequenceState summary;
  summary.model = state.model;
  summary.tokens = state.tokens;
  summary.outputs = state.outputs;
  summary.history = state.history;
  summary.pending = state.pending;
  return summary;
}

size_t SummaryBytes() { return static_cast<size_t>(StateSealer::SealedBytes(SequenceState())); }

// The numbers are not authenticated yet, so they may have any value.
absl::StatusOr<Parts> Parse(absl::string_view id, absl::string_view owner,
                            absl::string_view bytes) {
  const std::vector<absl::string_view> parts = absl::StrSplit(bytes, absl::MaxSplits('\n', kLines));
  Parts parsed;
  if (parts.size() != kLines + 1 || parts[0] != kRecordMagic ||
      !absl::SimpleAtoi(parts[1], &parsed.expires) || parsed.expires < 0 ||
      parsed.expires > StateFolder::kLatest || !absl::SimpleAtoi(parts[2], &parsed.record.bytes) ||
      parts[kLines].size() < SummaryBytes()) {
    return absl::InvalidArgumentError(
        "not a record of a state, or cut, or of another version of the server");
  }
  if (parts[4] != owner) return absl::InvalidArgumentError("a record of another owner");
  StateFolder::File& file = parsed.record.file;
  file.id = std::string(id);
  file.client = std::string(parts[3]);
  file.owner = std::string(parts[4]);
  file.model = std::string(parts[5]);
  parsed.lines = std::string(bytes.substr(0, bytes.size() - parts[kLines].size()));
  parsed.sealed = parts[kLines];
  return parsed;
}

}  // namespace

absl::StatusOr<std::string> SealRecord(const StateSealer& sealer, const StateFolder::File& file,
                                       int64_t now_ms) {
  AFT_RETURN_IF_ERROR(file.Check());
  RedisRecord record{.file = file, .bytes = StateBytes(*file.state)};
  const std::string lines = LinesOf(record, now_ms + file.ttl.count());
  if (lines.size() + SummaryBytes() > kMaxRecordHead) {
    return absl::InternalError("names that are too long");
  }
  std::string bytes;  // reserved at once: the budget has room for one copy of the state
  bytes.reserve(lines.size() + SummaryBytes() +
                static_cast<size_t>(StateSealer::SealedBytes(*file.state)));
  bytes += lines;
  AFT_RETURN_IF_ERROR(
      sealer.Append(SummaryOf(*file.state), ContextOf("summary", file.id, lines), bytes));
  AFT_RETURN_IF_ERROR(sealer.Append(*file.state, ContextOf("state", file.id, lines), bytes));
  return bytes;
}

absl::StatusOr<RedisRecord> OpenRecordHead(const StateSealer& sealer, absl::string_view id,
                                           absl::string_view owner, absl::string_view head,
                                           int64_t now_ms) {
  AFT_ASSIGN_OR_RETURN(Parts parts, Parse(id, owner, head));
  AFT_ASSIGN_OR_RETURN(SequenceState summary, sealer.Open(parts.sealed.substr(0, SummaryBytes()),
                                                          ContextOf("summary", id, parts.lines)));
  parts.record.file.ttl = std::chrono::milliseconds(parts.expires - now_ms);
  parts.record.file.state = std::make_shared<const SequenceState>(std::move(summary));
  return std::move(parts.record);
}

absl::StatusOr<SequenceState> OpenRecord(const StateSealer& sealer, absl::string_view id,
                                         absl::string_view owner, absl::string_view record) {
  AFT_ASSIGN_OR_RETURN(const Parts parts, Parse(id, owner, record));
  return sealer.Open(parts.sealed.substr(SummaryBytes()), ContextOf("state", id, parts.lines));
}

}  // namespace aft::server
