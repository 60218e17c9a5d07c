#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// What validation is made of. Each is OK or INVALID_ARGUMENT "PATH: reason".
namespace aft::server {

absl::Status BadField(absl::string_view path, absl::string_view reason);
absl::Status CheckOneOf(absl::string_view path, const std::string& value,
                        const std::vector<absl::string_view>& allowed);
// 1 to 128 letters, digits, '.', '_' or '-', and not "." or "..".
absl::Status CheckName(absl::string_view path, absl::string_view name);

}  // namespace aft::server
