#include "model/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace aft {

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path) {
  static std::atomic<uint64_t> counter{0};
  std::string temporary = absl::StrCat(path, ".tmp.", getpid(), ".", counter.fetch_add(1));
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", temporary));
  return std::unique_ptr<AtomicFile>(new AtomicFile(path, std::move(temporary), fd));
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!committed_) unlink(temporary_.c_str());
}

absl::Status AtomicFile::Error(absl::string_view what) const {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", temporary_));
}

absl::Status AtomicFile::Append(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(fd_, next, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      return Error("write");
    }
    next += written;
    bytes -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  if (fsync(fd_) != 0) return Error("sync");
  if (close(std::exchange(fd_, -1)) != 0) return Error("close");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot rename ", temporary_, " to ", path_));
  }
  committed_ = true;
  // The rename itself must reach the disk too.
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const int fd = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open folder of ", path_));
  const bool synced = fsync(fd) == 0;
  const int error = errno;
  close(fd);
  // Some file systems cannot sync a folder, and say EINVAL.
  if (!synced && error != EINVAL) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot sync folder of ", path_));
  }
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view content) {
  AFT_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file, AtomicFile::Create(path));
  AFT_RETURN_IF_ERROR(file->Append(content.data(), content.size()));
  return file->Commit();
}

}  // namespace aft
