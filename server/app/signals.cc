#include "server/app/signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>
#include <optional>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

sigset_t SetOf(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

// Ends the process after the time that stderr usually needs for the last lines.
[[noreturn]] void Exit(int code) {
  log::Flush(std::chrono::milliseconds(200));
  _exit(code);
}

}  // namespace

void BlockShutdownSignals() {
  const sigset_t set = SetOf({SIGTERM, SIGINT, SIGHUP});
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void HandleReloadSignal(std::function<void()> on_reload) {
  std::thread([on_reload = std::move(on_reload)] {
    const sigset_t set = SetOf({SIGHUP});
    int signal = 0;
    while (sigwait(&set, &signal) == 0) on_reload();
  }).detach();
}

void HandleShutdownSignals(std::function<std::optional<std::chrono::milliseconds>(int)> on_shutdown,
                           std::function<void()> before_exit, int forced_exit_code) {
  std::thread([on_shutdown = std::move(on_shutdown), before_exit = std::move(before_exit),
               forced_exit_code] {
    const sigset_t set = SetOf({SIGTERM, SIGINT});
    int signal = 0;
    sigwait(&set, &signal);
    const std::optional<std::chrono::milliseconds> hard_limit = on_shutdown(signal);
    if (!hard_limit.has_value()) Exit(128 + signal);

    const auto deadline = std::chrono::steady_clock::now() + *hard_limit;
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0) {
        log::Error("signal.hard_limit", {{"limit_ms", hard_limit->count()}});
        before_exit();
        Exit(forced_exit_code);
      }
      const timespec timeout = absl::ToTimespec(absl::FromChrono(left));
      signal = sigtimedwait(&set, nullptr, &timeout);
      if (signal > 0) {
        log::Error("signal.second", {{"signal", signal}});
        before_exit();
        Exit(128 + signal);
      }
    }
  }).detach();
}

}  // namespace aft::server
