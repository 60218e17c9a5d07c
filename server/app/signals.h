#pragma once

#include <chrono>
#include <functional>

namespace aft::server {

// SIGTERM, SIGINT and SIGHUP are never handled asynchronously: all threads block them, and one
// thread waits for them.

// Blocks them in this thread and in all threads that it starts. main must call it first.
void BlockShutdownSignals();

// Starts the thread. It calls `on_reload` for each SIGHUP. At the first SIGTERM or SIGINT it calls
// `on_shutdown` with the signal's number. After that, a second one ends the process at once with
// exit code 128 + its number. If the process still runs after `hard_limit`, the thread ends it with
// `forced_exit_code`.
void HandleShutdownSignals(std::function<void(int)> on_shutdown, std::function<void()> on_reload,
                           std::chrono::milliseconds hard_limit, int forced_exit_code);

}  // namespace aft::server
