#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"

namespace aft {

namespace {

absl::Status WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, "cannot write");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// The rename itself must reach the disk too.
absl::Status SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open folder of ", path));
  const bool synced = fsync(fd) == 0;
  const int error = errno;
  close(fd);
  // Some file systems cannot sync a folder, and return EINVAL.
  if (synced || error == EINVAL) return absl::OkStatus();
  return absl::ErrnoToStatus(error, absl::StrCat("cannot sync folder of ", path));
}

}  // namespace

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> pieces, mode_t mode,
                                 Progress* progress) {
  const auto write = [pieces](AppendPiece append) {
    absl::Status status;
    for (const absl::string_view piece : pieces) {
      if (status.ok()) status = append(piece);
    }
    return status;
  };
  return WriteFileAtomically(path, write, mode, progress);
}

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::FunctionRef<absl::Status(AppendPiece append)> write,
                                 mode_t mode, Progress* progress) {
  static std::atomic<uint64_t> counter{0};
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid(), ".", counter.fetch_add(1));
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", temporary));
  absl::Cleanup remove = [&temporary] { unlink(temporary.c_str()); };
  flock(fd, LOCK_EX);  // on a file system without locks, RemoveAbandoned removes nothing
  const absl::Status made = write([&](absl::string_view piece) {
    if (progress != nullptr) progress->Add(static_cast<int64_t>(piece.size()));
    return InFile(temporary, WriteAll(fd, piece));
  });
  absl::Status status;
  if (made.ok() && fsync(fd) != 0) status = absl::ErrnoToStatus(errno, "cannot sync");
  if (close(fd) != 0) status.Update(absl::ErrnoToStatus(errno, "cannot close"));
  AFT_RETURN_IF_ERROR(made);
  AFT_RETURN_IF_ERROR(InFile(temporary, status));
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot rename ", temporary, " to ", path));
  }
  std::move(remove).Cancel();
  return SyncFolderOf(path);
}

absl::StatusOr<int> CreateLockedFolder(const std::string& path) {
  int fd = -1;
  if (mkdir(path.c_str(), 0777) != 0 ||
      (fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot create folder ", path));
  }
  flock(fd, LOCK_EX);
  return fd;
}

void RemoveAbandoned(const std::string& prefix, const char* program) {
  namespace fs = std::filesystem;
  fs::path folder = fs::path(prefix).parent_path();
  if (folder.empty()) folder = ".";
  std::error_code error;
  std::vector<fs::path> left;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (absl::StartsWith(name, fs::path(prefix).filename().string())) left.push_back(entry->path());
  }
  for (const fs::path& path : left) {
    const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) continue;
    const absl::Cleanup close_it = [fd] { close(fd); };
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || fs::is_empty(path, error) || error) continue;
    if (fs::remove_all(path, error) == 0 || error) continue;
    std::fprintf(stderr, "%s: removed %s, which a killed process left\n", program, path.c_str());
  }
}

}  // namespace aft
