#include "server/observability/log_format.h"

#include <cmath>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/utf8.h"

namespace aft::server::log {
namespace {

// Formats a time as RFC 3339 in UTC with microseconds, e.g. 2026-01-31T08:09:10.123456Z.
std::string Timestamp(std::chrono::system_clock::time_point time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromChrono(time), absl::UTCTimeZone());
}

// Appends `text` as a JSON string, which is also logfmt's quoted form.
void AppendQuoted(absl::string_view text, std::string& line) {
  constexpr absl::string_view kEscaped = "\"\\\n\r\t";
  constexpr absl::string_view kEscapes = "\"\\nrt";
  line.push_back('"');
  const std::string valid = ToValidUtf8(text);
  for (size_t i = 0; i < valid.size(); ++i) {
    const char c = valid[i];
    const size_t escape = kEscaped.find(c);
    if (escape != kEscaped.npos) {
      line += {'\\', kEscapes[escape]};
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&line, "\\u%04x", static_cast<int>(c));
    } else if (c == '\xC2' && static_cast<unsigned char>(valid[i + 1]) < 0xA0) {
      // This byte and the next one are a control character, U+0080 to U+009F. In valid text there
      // is a next byte.
      absl::StrAppendFormat(&line, "\\u%04x",
                            static_cast<int>(static_cast<unsigned char>(valid[++i])));
    } else {
      line.push_back(c);
    }
  }
  line.push_back('"');
}

// Whether logfmt readers accept the text as one word.
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
  append("level", kLevelNames[static_cast<size_t>(level)]);
  append("event", event);
  for (const Field& field : fields) append(field.key, field.value);
  return json ? absl::StrCat("{", line, "}") : line;
}

}  // namespace aft::server::log
