#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace aft::client {

inline constexpr size_t kMostTextBytes = size_t{64} << 20;

// Read all of a file, or of standard input, byte for byte. Errors: NOT_FOUND and similar for what
// cannot be read, RESOURCE_EXHAUSTED above the limit. They name the file.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t most_bytes = kMostTextBytes);
absl::StatusOr<std::string> ReadStandardInput();

}  // namespace aft::client
