#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aft {

// Writes a file from `pieces`, one after the other. Even after a crash, `path` holds either its old
// content or all of the new one: this function writes a temporary file next to `path`, syncs it and
// renames it. It removes the temporary file, PATH.tmp.*, after an error; a crash may leave it. The
// file gets the permissions `mode`, less the umask.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> pieces, mode_t mode = 0644);

}  // namespace aft
