#pragma once

#include "absl/status/status.h"

namespace aft::client {

// Exit codes of the client programs; kExitCodeHelp documents them. In addition, a program that a
// signal ended exits with 128 + the signal: 130 for Ctrl-C, 143 for SIGTERM, 141 when the reader of
// its output has exited.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnreachable = 3,
  kExitRefused = 4,
  kExitBusy = 5,
  kExitDeadline = 6,
  kExitBroken = 7,
  kExitBrokenPipe = 141,  // as for a filter that SIGPIPE ended
};

inline constexpr char kExitCodeHelp[] =
    "Exit codes:\n"
    "  0    success\n"
    "  1    the server failed, or is not serving\n"
    "  2    wrong usage of this program\n"
    "  3    the server cannot be reached\n"
    "  4    the server refused the request: a bad field, an unknown model or a size above a limit\n"
    "  5    the server is full, loading or draining: try again later\n"
    "  6    the deadline passed\n"
    "  7    the answer broke off: lost connection or lost tokens\n"
    "  130  interrupted (Ctrl-C); 143 terminated; 141 the reader of the output exited";

// Returns the exit code for the status that a call of Client returned.
int ExitCodeOf(const absl::Status& status);

}  // namespace aft::client
