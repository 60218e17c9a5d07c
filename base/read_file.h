#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace aft {

inline constexpr size_t kMostFileBytes = size_t{64} << 20;

// Read all of a file, or of standard input, byte for byte. Errors: NOT_FOUND and similar for what
// cannot be read, RESOURCE_EXHAUSTED above the limit (the rest is not read). The errors name the
// file.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t most_bytes = kMostFileBytes);
absl::StatusOr<std::string> ReadStandardInput();

// Reads a file that must be a regular one. INVALID_ARGUMENT "path: reason" if it is not, or is
// longer than `most_bytes`; otherwise the errors of ReadFile.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t most_bytes);

}  // namespace aft
