#pragma once

#include <sys/types.h>

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/progress.h"

namespace aft {

// Writes a file from `pieces`, one after the other. Even after a crash, `path` holds either its old
// content or all of the new one: this function writes a temporary file next to `path`, syncs it and
// renames it. It removes the temporary file, PATH.tmp.*, after an error; a crash may leave it
// (RemoveAbandoned). The file gets the permissions `mode`, less the umask. `progress`, if not null,
// gets the bytes of each piece that is written.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> pieces, mode_t mode = 0644,
                                 Progress* progress = nullptr);

// Writes content that is made while it is written: `write` appends it piece by piece. The
// errors of `write` are returned as they are.
using AppendPiece = absl::FunctionRef<absl::Status(absl::string_view piece)>;
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::FunctionRef<absl::Status(AppendPiece append)> write,
                                 mode_t mode = 0644, Progress* progress = nullptr);

// Creates a folder with a temporary name and locks it, so that RemoveAbandoned leaves it alone. The
// lock lasts until the returned descriptor is closed, which is the caller's to do.
absl::StatusOr<int> CreateLockedFolder(const std::string& path);

// Removes the temporary files and folders that processes left when they were killed: those whose
// path begins with `prefix`. Prints a line for each, which begins with `program`. Keeps what a
// running process has locked, and whatever is empty, because its process may be about to lock it.
// Such a lock ends with its process, so a new process with the same PID makes no difference.
void RemoveAbandoned(const std::string& prefix, const char* program);

}  // namespace aft
