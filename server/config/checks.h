#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// What validation is made of. Each is OK or INVALID_ARGUMENT "PATH: reason".
namespace aft::server {

absl::Status BadField(absl::string_view path, absl::string_view reason);
absl::Status CheckRange(absl::string_view path, int64_t value, int64_t low, int64_t high);
absl::Status CheckOneOf(absl::string_view path, const std::string& value,
                        std::initializer_list<absl::string_view> allowed);
// 1 to 128 letters, digits, '.', '_' or '-', and not "." or "..".
absl::Status CheckName(absl::string_view path, absl::string_view name);

}  // namespace aft::server
