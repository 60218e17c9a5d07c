#include "base/progress.h"

#include <unistd.h>

#include <cstdio>

namespace aft {

Progress ProgressOnStandardError(const char* program) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  return Progress(
      std::chrono::seconds(terminal ? 1 : 5), [program, terminal](std::optional<int> percent) {
        if (percent.has_value()) {
          std::fprintf(stderr, "%s: %d %%%s", program, *percent, terminal ? "\r" : "\n");
        } else if (terminal) {
          std::fputs("\033[K", stderr);  // clears the line
        }
      });
}

}  // namespace aft
