#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// The building blocks of validation. Each check returns OK or INVALID_ARGUMENT "PATH: reason".
namespace aft::server {

inline constexpr int kMaxModelNameBytes = 128;
inline constexpr size_t kMaxStopStringBytes = 256;
inline constexpr int kMaxServiceNameBytes = 256;

absl::Status BadField(absl::string_view path, absl::string_view reason);
// Returns `error` with the path `to` in place of `from`, if its message begins with that path.
absl::Status WithPath(const absl::Status& error, absl::string_view from, absl::string_view to);
absl::Status CheckOneOf(absl::string_view path, const std::string& value,
                        const std::vector<absl::string_view>& allowed);
// Checks that a name has at most `most` bytes, before it is looked up, logged or echoed.
absl::Status CheckLength(absl::string_view path, size_t bytes, size_t most);
// Checks for 1 to 128 letters, digits, '.', '_' or '-', and not "." or "..".
absl::Status CheckName(absl::string_view path, absl::string_view name);

}  // namespace aft::server
