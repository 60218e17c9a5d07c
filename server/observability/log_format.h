#pragma once

#include <array>
#include <chrono>
#include <string>

#include "absl/strings/string_view.h"
#include "server/observability/log.h"

namespace aft::server::log {

// The names are in the order of Level.
inline constexpr std::array<absl::string_view, 4> kLevelNames = {"debug", "info", "warning",
                                                                 "error"};

// One log line, without the line break. Keys come in the order time, level, event, then `fields`.
// The line is valid UTF-8 without control characters whatever the values hold: bytes that are not
// UTF-8 become U+FFFD. A double that is not finite becomes a string, because JSON has no such
// number.
std::string FormatLine(Format format, Level level, std::chrono::system_clock::time_point time,
                       absl::string_view event, Fields fields);

}  // namespace aft::server::log
