#include "base/read_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace aft {
namespace {

// Reads all of `fd`. `name` is for error messages.
absl::StatusOr<std::string> ReadAll(int fd, absl::string_view name, size_t most_bytes) {
  std::string text;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t size = read(fd, buffer.data(), buffer.size());
    if (size == 0) return text;
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", name));
    text.append(buffer.data(), static_cast<size_t>(size));
    if (text.size() > most_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot read ", name, ": it has more than ", most_bytes, " bytes"));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t most_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  absl::StatusOr<std::string> text = ReadAll(fd, path, most_bytes);
  close(fd);
  return text;
}

absl::StatusOr<std::string> ReadStandardInput() {
  return ReadAll(STDIN_FILENO, "standard input", kMostFileBytes);
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t most_bytes) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (!error && bytes > most_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes, " bytes; at most ", most_bytes));
  }
  return ReadFile(path, most_bytes);
}

}  // namespace aft
