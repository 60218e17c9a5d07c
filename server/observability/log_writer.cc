#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/strings/str_cat.h"
#include "server/observability/log.h"
#include "server/observability/log_format.h"

namespace aft::server::log {
namespace {

std::atomic<Level> min_level{Level::kInfo};
std::atomic<Format> line_format{Format::kLogfmt};

// Never destroyed: threads may log while the process exits.
spdlog::logger& Backend() {
  static auto& logger = *[] {
    auto* created = new spdlog::logger("aft", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->set_pattern("%v");
    created->set_level(spdlog::level::trace);  // FormatLine writes the level; min_level filters
    created->flush_on(spdlog::level::trace);
    return created;
  }();
  return logger;
}

void Write(Level level, absl::string_view event, Fields fields) {
  if (level < min_level.load(std::memory_order_relaxed)) return;
  const std::string line = FormatLine(line_format.load(std::memory_order_relaxed), level,
                                      std::chrono::system_clock::now(), event, fields);
  Backend().log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
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

void Debug(absl::string_view event, Fields fields) { Write(Level::kDebug, event, fields); }
void Info(absl::string_view event, Fields fields) { Write(Level::kInfo, event, fields); }
void Warning(absl::string_view event, Fields fields) { Write(Level::kWarning, event, fields); }
void Error(absl::string_view event, Fields fields) { Write(Level::kError, event, fields); }

}  // namespace aft::server::log
