#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "server/observability/line_writer.h"
#include "server/observability/log.h"
#include "server/observability/log_format.h"

namespace aft::server::log {
namespace {

// Room for some thousand lines.
constexpr size_t kMaxWaitingBytes = 1 << 20;

std::atomic<Level> min_level{Level::kInfo};
std::atomic<Format> line_format{Format::kLogfmt};

std::string Line(Level level, absl::string_view event, Fields fields) {
  return FormatLine(line_format.load(std::memory_order_relaxed), level,
                    std::chrono::system_clock::now(), event, fields) +
         "\n";
}

// The writer is never destroyed, because threads may log while the process exits.
LineWriter& Writer() {
  static auto& writer = *new LineWriter(STDERR_FILENO, kMaxWaitingBytes, [](uint64_t lines) {
    return Line(Level::kWarning, "log.dropped", {{"lines", lines}});
  });
  return writer;
}

void Write(Level level, absl::string_view event, Fields fields) {
  if (level < min_level.load(std::memory_order_relaxed)) return;
  LineWriter& writer = Writer();
  const absl::Status added = Catching([&] {
    writer.Add(Line(level, event, fields));
    return absl::OkStatus();
  });
  if (!added.ok()) writer.Drop();
}

}  // namespace

absl::StatusOr<Level> ParseLevel(absl::string_view name) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (name == kLevelNames[i]) return static_cast<Level>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is no log level; use debug, info, warning or error"));
}

absl::StatusOr<Format> ParseFormat(absl::string_view name) {
  if (name == "logfmt") return Format::kLogfmt;
  if (name == "json") return Format::kJson;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is no log format; use logfmt or json"));
}

void Init(Level level, Format format) {
  min_level.store(level, std::memory_order_relaxed);
  line_format.store(format, std::memory_order_relaxed);
}

void Text(absl::string_view text) { Writer().Add(text); }
bool Flush(std::chrono::milliseconds at_most) { return Writer().Flush(at_most); }
uint64_t dropped_lines() { return Writer().dropped(); }

void Info(absl::string_view event, Fields fields) { Write(Level::kInfo, event, fields); }
void Warning(absl::string_view event, Fields fields) { Write(Level::kWarning, event, fields); }
void Error(absl::string_view event, Fields fields) { Write(Level::kError, event, fields); }

}  // namespace aft::server::log
