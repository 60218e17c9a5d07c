#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace aft::client {

// Unbuffered standard output: text shows as it arrives, and a closed output is noticed. Ignores
// SIGPIPE for the whole process from construction on. Not thread-safe.
class Output {
 public:
  Output();

  // Returns false, from then on, if the text could not be written: the reader has exited, or the
  // disk is full.
  bool Write(absl::string_view text);

  // On a terminal, ends the current line, so that the next output starts on a new one.
  void EndLine();

  bool is_terminal() const { return is_terminal_; }
  // errno of the write that failed; 0: no failure.
  int error() const { return error_; }

 private:
  const bool is_terminal_;
  bool in_line_ = false;
  int error_ = 0;
};

// Returns the exit code for a program that has written its output: kExitOk; without a message
// kExitBrokenPipe, if the output has no reader any more; otherwise kExitFailed, after an error
// message of `program`.
int OutputCode(absl::string_view program, const Output& output);

// Replaces what could control a terminal: control characters other than newline and tab become
// U+FFFD. `text` must be valid UTF-8.
std::string ForTerminal(absl::string_view text);

// Writes "PROGRAM: MESSAGE\n" to standard error, in a form that is safe for a terminal.
void PrintError(absl::string_view program, absl::string_view message);

}  // namespace aft::client
