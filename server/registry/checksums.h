#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace aft::server {

inline constexpr char kChecksumsName[] = "SHA256SUMS";

// Checks `files` in `folder` against the folder's file kChecksumsName, which must name each of them
// with the right SHA-256, and no other file. Its lines have the form of sha256sum: 64 hexadecimal
// digits, a space, a space or '*', and the name ("./" before it is allowed). Reads all files.
// DATA_LOSS names the file, or the line.
absl::Status CheckChecksums(const std::string& folder, const std::vector<std::string>& files);

}  // namespace aft::server
