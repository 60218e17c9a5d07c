#pragma once

#include <chrono>
#include <functional>

namespace aft::server {

// SIGTERM, SIGINT and SIGHUP are never handled asynchronously: every thread blocks them, and one
// thread of its own waits for them.

// Blocks them in this thread and all that it starts. Call first of all in main.
void BlockShutdownSignals();

// Starts the thread. SIGHUP calls `on_reload`, until one of the others comes: the first of these
// calls `on_shutdown` with its number. From then on a second one ends the process at once with exit
// code 128 + its number; and if the process still lives after `hard_limit`, it is ended with
// `forced_exit_code`. The thread lives as long as the process.
void HandleShutdownSignals(std::function<void(int)> on_shutdown, std::function<void()> on_reload,
                           std::chrono::milliseconds hard_limit, int forced_exit_code);

}  // namespace aft::server
