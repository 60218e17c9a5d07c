#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace aft::server {

inline constexpr char kChecksumsName[] = "SHA256SUMS";

// Whether the file of that name in `folder` vouches for `files`, which stand beside it: it names
// each of them, no other one, and with the right SHA-256. Its lines are what sha256sum writes: 64
// hexadecimal digits, a space, a space or '*', and the name ("./" before it is allowed). Reads them
// all. DATA_LOSS names the file, or the line.
absl::Status CheckChecksums(const std::string& folder, const std::vector<std::string>& files);

}  // namespace aft::server
