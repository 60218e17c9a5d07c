#include "server/observability/log_format.h"

#include <cmath>
#include <cstdio>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace aft::server::log {
namespace {

absl::string_view LevelName(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarning:
      return "warning";
    case Level::kError:
      return "error";
  }
  return "error";
}

// RFC 3339 in UTC with microseconds, e.g. 2026-01-31T08:09:10.123456Z.
std::string Timestamp(std::chrono::system_clock::time_point time) {
  const auto micros =
      std::chrono::floor<std::chrono::microseconds>(time.time_since_epoch()).count();
  const auto days = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(days);
  const std::chrono::hh_mm_ss clock(std::chrono::floor<std::chrono::seconds>(time - days));
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02d.%06dZ",
                static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                static_cast<unsigned>(date.day()), static_cast<int>(clock.hours().count()),
                static_cast<int>(clock.minutes().count()),
                static_cast<int>(clock.seconds().count()), static_cast<int>(micros % 1'000'000));
  return text.data();
}

// A JSON string; logfmt's quoted form is the same.
void AppendQuoted(absl::string_view text, std::string& line) {
  line.push_back('"');
  for (const char c : ToValidUtf8(text)) {
    switch (c) {
      case '"':
        line += "\\\"";
        break;
      case '\\':
        line += "\\\\";
        break;
      case '\n':
        line += "\\n";
        break;
      case '\r':
        line += "\\r";
        break;
      case '\t':
        line += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          std::array<char, 8> escape{};
          std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
          line += escape.data();
        } else {
          line.push_back(c);
        }
    }
  }
  line.push_back('"');
}

// What logfmt readers take as one word.
bool IsBareWord(absl::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (c <= ' ' || c > '~' || c == '"' || c == '=' || c == '\\') return false;
  }
  return true;
}

void AppendText(Format format, absl::string_view text, std::string& line) {
  if (format == Format::kLogfmt && IsBareWord(text)) {
    absl::StrAppend(&line, text);
  } else {
    AppendQuoted(text, line);
  }
}

void AppendValue(Format format, const Value& value, std::string& line) {
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, absl::string_view>) {
          AppendText(format, v, line);
        } else if constexpr (std::is_same_v<T, bool>) {
          line += v ? "true" : "false";
        } else if constexpr (std::is_same_v<T, double>) {
          const std::string number = absl::StrCat(v);
          std::isfinite(v) ? void(line += number) : AppendText(format, number, line);
        } else {
          absl::StrAppend(&line, v);
        }
      },
      value.get());
}

}  // namespace

std::string FormatLine(Format format, Level level, std::chrono::system_clock::time_point time,
                       absl::string_view event, Fields fields) {
  const bool json = format == Format::kJson;
  std::string line;
  const auto append = [&](absl::string_view key, const Value& value) {
    if (!line.empty()) line += json ? ", " : " ";
    json ? absl::StrAppend(&line, "\"", key, "\": ") : absl::StrAppend(&line, key, "=");
    AppendValue(format, value, line);
  };
  append("time", Timestamp(time));
  append("level", LevelName(level));
  append("event", event);
  for (const Field& field : fields) append(field.key, field.value);
  return json ? absl::StrCat("{", line, "}") : line;
}

}  // namespace aft::server::log
