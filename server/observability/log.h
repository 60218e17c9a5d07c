#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// The structured log: one line per event on stderr, logfmt or JSON, with UTC time and level.
//
//   log::Info("request.done", {{"id", id}, {"tokens", n}});
//
// Nothing is logged per token. All functions are thread-safe, and none waits for stderr: they leave
// lines in a queue, which a thread of its own writes. When the reader of stderr does not keep up,
// lines are dropped, counted (aft_log_lines_dropped_total) and reported in the line `log.dropped`.
// So is a line for which there is no memory: once that thread runs, Info, Warning and Error do not
// throw.
namespace aft::server::log {

// No event has the level kDebug, but a config may name it.
enum class Level { kDebug, kInfo, kWarning, kError };
enum class Format { kLogfmt, kJson };

// "debug", "info", "warning", "error"; "logfmt", "json". Anything else is INVALID_ARGUMENT.
absl::StatusOr<Level> ParseLevel(absl::string_view name);
absl::StatusOr<Format> ParseFormat(absl::string_view name);

// Events below `level` are dropped. Before the first call: kInfo, kLogfmt.
void Init(Level level, Format format);

// A field's value. Borrows strings: lives for the one call only.
class Value {
 public:
  // NOLINTBEGIN(google-explicit-constructor): fields are written as {"key", value}.
  Value(bool value) : value_(value) {}
  Value(int value) : value_(int64_t{value}) {}
  Value(long value) : value_(int64_t{value}) {}
  Value(long long value) : value_(int64_t{value}) {}
  Value(unsigned value) : value_(uint64_t{value}) {}
  Value(unsigned long value) : value_(uint64_t{value}) {}
  Value(unsigned long long value) : value_(uint64_t{value}) {}
  Value(double value) : value_(value) {}
  Value(const char* value) : value_(absl::string_view(value)) {}
  Value(const std::string& value) : value_(absl::string_view(value)) {}
  Value(absl::string_view value) : value_(value) {}
  // NOLINTEND(google-explicit-constructor)

  const std::variant<bool, int64_t, uint64_t, double, absl::string_view>& get() const {
    return value_;
  }

 private:
  std::variant<bool, int64_t, uint64_t, double, absl::string_view> value_;
};

struct Field {
  absl::string_view key;  // [a-z0-9_.]+, a constant of the program
  Value value;
};

using Fields = std::initializer_list<Field>;

// Logs text unchanged, in its turn: lines with their line breaks.
void Text(absl::string_view text);

// To be called before the process ends. Returns true when everything so far has been written; false
// if `at_most` passes before.
bool Flush(std::chrono::milliseconds at_most);

// The number of lines that were dropped since the process started.
uint64_t dropped_lines();

void Info(absl::string_view event, Fields fields = {});
void Warning(absl::string_view event, Fields fields = {});
void Error(absl::string_view event, Fields fields = {});

}  // namespace aft::server::log
