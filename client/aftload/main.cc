// aftload: measures an AFT server under load.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/aftload/load.h"
#include "client/lib/address.h"
#include "client/tool/connection_flags.h"
#include "client/tool/exit_code.h"
#include "client/tool/interrupt.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

struct Flags {
  LoadOptions load;
  ConnectionFlags connection;
  std::optional<uint64_t> requests;
  std::optional<double> duration;
  bool json = false;
  bool allow_remote = false;
};

void AddFlags(CLI::App& app, Flags& flags) {
  LoadOptions& load = flags.load;
  AddConnectionFlags(app, flags.connection);
  app.add_flag("--allow-remote", flags.allow_remote, "Load a server on another machine");
  app.add_option("--model", load.model, "Model; may be left out when the server has only one");
  app.add_option("--streams", load.streams, "Requests at once (with --rate: at most)")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--rate", load.rate,
                 "Open loop: requests a second as a Poisson process; latencies count from the "
                 "scheduled time. Default: closed loop, each stream sends when its last has ended")
      ->check(CLI::Range(1e-3, 1e6));
  app.add_option("--connections", load.connections, "TCP connections for the streams to share")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--requests", flags.requests,
                 "End after this many requests; default 64, or 1000000 with --duration")
      ->check(CLI::Range(1, 100'000'000));
  app.add_option("--duration", flags.duration,
                 "End after this time and cut what still runs; default 60, or 3600 with --requests")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, 86400.0));
  app.add_option("--warmup", load.warmup, "Requests before the measurement")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--attempts", load.attempts,
                 "How often a refused request is sent, the first time included; latencies count on")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--max-tokens", load.max_tokens, "Tokens of each request; end of text is ignored")
      ->check(CLI::Range(1, 1'000'000'000))
      ->capture_default_str();
  CLI::Option* const prompt = app.add_option("--prompt", load.prompt, "The same text every time");
  app.add_option("--prompt-bytes", load.prompt_bytes,
                 "Random words of this length, different every time")
      ->check(CLI::Range(1, 16 << 20))
      ->excludes(prompt)
      ->capture_default_str();
  app.add_option("--seed", load.seed, "Of prompts, arrivals and sampling")->capture_default_str();
  app.add_flag("--json", flags.json, "One JSON object instead of a table");
}

// Both bounds always hold; the one that is not given does not get in the other's way.
void SetBounds(Flags& flags) {
  flags.load.requests = flags.requests.value_or(flags.duration ? 1'000'000 : 64);
  const double seconds = flags.duration.value_or(flags.requests ? 3600 : 60);
  flags.load.duration = std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

int Run(int argc, char** argv) {
  CLI::App app("Measures an AFT server under load.", "aftload");
  app.set_version_flag("--version", std::string("aftload ") + AFT_VERSION);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("aftload: ") + error.what() + "\naftload --help lists what there is\n";
  });
  app.footer(kExitCodeHelp);
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  SetBounds(flags);
  absl::Status address = CheckAddress(flags.connection.address);
  if (address.ok() && !flags.allow_remote && !IsLoopback(flags.connection.address)) {
    address = absl::InvalidArgumentError(
        absl::StrCat(flags.connection.address,
                     " is not on this machine: --allow-remote if you mean to load it"));
  }
  absl::StatusOr<ClientOptions> client = MakeClientOptions(flags.connection);
  if (address.ok()) address = client.status();
  if (!address.ok()) {
    PrintError("aftload", address.message());
    return kExitUsage;
  }
  flags.load.client = *std::move(client);

  Output output;
  CancelToken cancel;
  const Interrupt interrupt(cancel);  // before the client: see there
  const absl::StatusOr<LoadReport> report = RunLoad(flags.load, cancel);
  if (!report.ok()) {
    PrintError("aftload", report.status().message());
    return interrupt.exit_code() != 0 ? interrupt.exit_code() : ExitCodeOf(report.status());
  }
  const bool written =
      output.Write(flags.json ? JsonReport(flags.load, *report) : TextReport(flags.load, *report));
  if (interrupt.exit_code() != 0) return interrupt.exit_code();
  return written && report->stats.errors.empty() ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace aft::client

int main(int argc, char** argv) {
  // gRPC's own log lines would mix with ours; errors reach us as statuses.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  return aft::client::Run(argc, argv);
}
