#include "client/aftctl/text_input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace aft::client {
namespace {

// `name`: for messages.
absl::StatusOr<std::string> ReadAll(int fd, absl::string_view name) {
  constexpr size_t kMaxBytes = size_t{64} << 20;
  std::string text;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t size = read(fd, buffer.data(), buffer.size());
    if (size == 0) return text;
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", name));
    text.append(buffer.data(), static_cast<size_t>(size));
    if (text.size() > kMaxBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(name, " is longer than 64 MiB"));
    }
  }
}

}  // namespace

void AddText(CLI::App& app, const std::string& purpose, TextFlags& flags) {
  CLI::Option* const prompt =
      app.add_option("--prompt", flags.prompt, purpose + "; absent or -: standard input, as it is");
  app.add_option("--file", flags.file, "Take the text from this file, as it is")->excludes(prompt);
}

absl::StatusOr<std::string> ReadText(const TextFlags& flags) {
  if (!flags.file.empty()) {
    const int fd = open(flags.file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", flags.file));
    absl::StatusOr<std::string> text = ReadAll(fd, flags.file);
    close(fd);
    return text;
  }
  if (flags.prompt != "-") return flags.prompt;
  if (isatty(STDIN_FILENO) == 1) {
    constexpr absl::string_view kHint = "Type the text, then Ctrl-D:\n";
    [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, kHint.data(), kHint.size());
  }
  return ReadAll(STDIN_FILENO, "standard input");
}

}  // namespace aft::client
