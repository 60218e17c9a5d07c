#pragma once

#include <chrono>
#include <functional>
#include <optional>

namespace aft::server {

// SIGTERM, SIGINT and SIGHUP are never handled asynchronously: all threads block them, and two
// threads wait for them.

// Blocks them in this thread and in all threads that it starts. main must call it first.
void BlockShutdownSignals();

// Starts the thread of SIGTERM and SIGINT. At the first such signal it calls `on_shutdown` with the
// signal's number. This returns for how long the process may still run, or nullopt when there is
// nothing to shut down yet: then the process ends at once, with exit code 128 + the number.
//
// Otherwise a second such signal ends the process at once with exit code 128 + its number. If the
// process still runs when its time is over, the thread ends it with `forced_exit_code`. In both
// cases it calls `before_exit`.
void HandleShutdownSignals(std::function<std::optional<std::chrono::milliseconds>(int)> on_shutdown,
                           std::function<void()> before_exit, int forced_exit_code);

// Starts the thread of SIGHUP, which calls `on_reload` for each one, also during the shutdown and
// for one that came before. This call may block without delaying the other signals. If SIGHUP comes
// meanwhile, one more call follows.
void HandleReloadSignal(std::function<void()> on_reload);

}  // namespace aft::server
