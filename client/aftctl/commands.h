#ifndef AFT_CLIENT_AFTCTL_COMMANDS_H_
#define AFT_CLIENT_AFTCTL_COMMANDS_H_

#include <CLI/App.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "client/lib/aft_client.h"

namespace aft::client {

// Options of every subcommand.
struct CommonFlags {
  std::string address = "127.0.0.1:8500";
};

// A subcommand adds its options to `app` and returns what runs it: called once, after parsing,
// returns the exit code. `flags` must outlive both.
using Command = std::function<int()>;
Command AddGenerate(CLI::App& app, const CommonFlags& flags);
Command AddModels(CLI::App& app, const CommonFlags& flags);
Command AddHealth(CLI::App& app, const CommonFlags& flags);

// Adds --deadline; 0 is "none" when `seconds` starts at 0.
void AddDeadline(CLI::App& app, double& seconds);
std::chrono::milliseconds ToMilliseconds(double seconds);

// Says on standard error why the call failed; returns the exit code.
int ReportError(const absl::Status& status);

}  // namespace aft::client

#endif  // AFT_CLIENT_AFTCTL_COMMANDS_H_
