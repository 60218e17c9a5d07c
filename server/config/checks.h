#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// What validation is made of. Each is OK or INVALID_ARGUMENT "PATH: reason".
namespace aft::server {

inline constexpr int kMaxModelNameBytes = 128;
inline constexpr int kMaxServiceNameBytes = 256;

absl::Status BadField(absl::string_view path, absl::string_view reason);
absl::Status CheckOneOf(absl::string_view path, const std::string& value,
                        const std::vector<absl::string_view>& allowed);
// That a name is not longer than any that is served: before it is looked up, logged or echoed.
absl::Status CheckLength(absl::string_view path, size_t bytes, size_t most);
// 1 to 128 letters, digits, '.', '_' or '-', and not "." or "..".
absl::Status CheckName(absl::string_view path, absl::string_view name);

}  // namespace aft::server
