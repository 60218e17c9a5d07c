#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace aft::client {

// Exit code of a program whose output nobody reads any more: that of a filter ended by SIGPIPE.
inline constexpr int kExitBrokenPipe = 141;

// Unbuffered standard output, so that text shows as it comes and its reader's end is noticed.
// Ignores SIGPIPE for the whole process from construction on. Not thread-safe.
class Output {
 public:
  Output();

  // False, from then on, when the text could not be written: the reader went away, or the disk is
  // full.
  bool Write(absl::string_view text);

  // On a terminal, what follows starts on a line of its own.
  void EndLine();

  bool is_terminal() const { return is_terminal_; }
  // errno of the write that failed; 0: none did.
  int error() const { return error_; }

 private:
  const bool is_terminal_;
  bool in_line_ = false;
  int error_ = 0;
};

// `text` without what could steer a terminal: control characters other than newline and tab become
// U+FFFD. `text` must be valid UTF-8.
std::string ForTerminal(absl::string_view text);

// Writes "PROGRAM: MESSAGE\n" to standard error, harmless for a terminal.
void PrintError(absl::string_view program, absl::string_view message);

}  // namespace aft::client
