#pragma once

#include <chrono>
#include <functional>

namespace aft::server {

// SIGTERM, SIGINT and SIGHUP are never handled asynchronously: all threads block them, and two
// threads wait for them.

// Blocks them in this thread and in all threads that it starts. main must call it first.
void BlockShutdownSignals();

// Starts the threads. One calls `on_reload` for each SIGHUP, also during the drain. This call may
// block without delaying the other signals. If SIGHUP comes meanwhile, one more call follows.
//
// At the first SIGTERM or SIGINT the other thread calls `on_shutdown` with the signal's number.
// After that, a second such signal ends the process at once with exit code 128 + its number. If the
// process still runs after `hard_limit`, the thread ends it with `forced_exit_code`.
void HandleShutdownSignals(std::function<void(int)> on_shutdown, std::function<void()> on_reload,
                           std::chrono::milliseconds hard_limit, int forced_exit_code);

}  // namespace aft::server
