#ifndef AFT_CLIENT_AFTCTL_COMMANDS_H_
#define AFT_CLIENT_AFTCTL_COMMANDS_H_

#include <CLI/App.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/lib/aft_client.h"
#include "client/tool/output.h"

namespace aft::client {

// Options of every subcommand.
struct CommonFlags {
  std::string address = "127.0.0.1:8500";
};

// A subcommand adds its options to `app` and returns what runs it: called once, after parsing,
// returns the exit code. `flags` must outlive both.
using Command = std::function<int()>;
Command AddGenerate(CLI::App& app, const CommonFlags& flags);
Command AddScore(CLI::App& app, const CommonFlags& flags);
Command AddEncode(CLI::App& app, const CommonFlags& flags);
Command AddModels(CLI::App& app, const CommonFlags& flags);
Command AddHealth(CLI::App& app, const CommonFlags& flags);

// Adds --deadline; 0 is "none" when `seconds` starts at 0.
void AddDeadline(CLI::App& app, double& seconds);
std::chrono::milliseconds ToMilliseconds(double seconds);

// Options of every streaming call.
struct CallFlags {
  std::string model;
  double deadline = 0;
  std::string request_id;
  bool json = false;
};
// Adds them; returns --json.
CLI::Option* AddCall(CLI::App& app, CallFlags& flags);

// A client, or null after saying on standard error why not: kExitUsage.
std::unique_ptr<Client> OpenClient(const ClientOptions& options);

// A streaming call, ready to be made.
struct StreamCall {
  Client& client;
  Output& output;
  CancelToken& cancel;
  CallOptions options;  // from the flags
};

// Connects, lets `run` make a call and print what comes, and turns its end into the exit code. A
// signal, or `run` when a write fails, cancels the call. `fail` is told about a failed call, and
// whether a signal to this program was the cause; ReportStreamError is for it.
int RunStream(const CommonFlags& common, const CallFlags& flags,
              absl::FunctionRef<absl::Status(const StreamCall&)> run,
              absl::FunctionRef<void(Output&, const absl::Status&, bool)> fail);
void ReportStreamError(Output& output, bool json, const absl::Status& status, bool interrupted);

// Says on standard error why the call failed; returns the exit code.
int ReportError(const absl::Status& status);

// "[LINE]" on standard error.
void PrintSummary(const std::string& line);

}  // namespace aft::client

#endif  // AFT_CLIENT_AFTCTL_COMMANDS_H_
