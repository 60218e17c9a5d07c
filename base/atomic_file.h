#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aft {

// Writes a file, of pieces one after the other, so that `path` holds either its old content or all
// of the new, also after a crash: a temporary file beside it, synced, then renamed; removed after
// an error. A crash may leave the temporary file, PATH.tmp.*, behind. `mode`: of a new file, less
// the umask.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> pieces, mode_t mode = 0644);

}  // namespace aft
