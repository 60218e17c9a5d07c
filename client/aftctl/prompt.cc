#include "client/aftctl/prompt.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/utf8.h"

namespace aft::client {

absl::StatusOr<std::string> ReadStdin() {
  constexpr size_t kMaxBytes = size_t{64} << 20;
  if (isatty(STDIN_FILENO) == 1) {
    constexpr absl::string_view kHint = "Type the prompt, then Ctrl-D:\n";
    [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, kHint.data(), kHint.size());
  }
  std::string text;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t size = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (size == 0) return text;
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {
      return absl::UnknownError(absl::StrCat("cannot read the prompt: ", strerror(errno)));
    }
    text.append(buffer.data(), static_cast<size_t>(size));
    if (text.size() > kMaxBytes) {
      return absl::ResourceExhaustedError("the prompt on standard input is longer than 64 MiB");
    }
  }
}

void SetPrompt(std::string prompt, v1::GenerateRequest& request) {
  if (ToValidUtf8(prompt) == prompt) {
    request.set_text(std::move(prompt));
  } else {
    request.set_raw(std::move(prompt));
  }
}

}  // namespace aft::client
