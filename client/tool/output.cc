#include "client/tool/output.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "client/tool/exit_code.h"

namespace aft::client {

Output::Output() : is_terminal_(isatty(STDOUT_FILENO) == 1) { signal(SIGPIPE, SIG_IGN); }

bool Output::Write(absl::string_view text) {
  if (!text.empty()) in_line_ = text.back() != '\n';
  while (error_ == 0 && !text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // another process has made the terminal non-blocking
      pollfd ready = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
      poll(&ready, 1, /*timeout=*/-1);
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  return error_ == 0;
}

void Output::EndLine() {
  if (in_line_ && is_terminal_) Write("\n");
}

int OutputCode(absl::string_view program, const Output& output) {
  if (output.error() == 0) return kExitOk;
  if (output.error() == EPIPE) return kExitBrokenPipe;
  PrintError(program, absl::StrCat("cannot write the output: ",
                                   std::generic_category().message(output.error())));
  return kExitFailed;
}

std::string ForTerminal(absl::string_view text) {
  constexpr char kReplacement[] = "\xEF\xBF\xBD";
  std::string safe;
  safe.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool is_c0 = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    // U+0080 to U+009F, which some terminals obey like ESC sequences.
    const bool is_c1 = byte == 0xC2 && next >= 0x80 && next < 0xA0;
    if (is_c0 || is_c1) {
      safe += kReplacement;
      if (is_c1) ++i;
    } else {
      safe += text[i];
    }
  }
  return safe;
}

void PrintError(absl::string_view program, absl::string_view message) {
  const std::string line = absl::StrCat(program, ": ", ForTerminal(ToValidUtf8(message)), "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace aft::client
