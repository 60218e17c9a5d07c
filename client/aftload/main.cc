// aftload: measures an AFT server under load.
#include <stdlib.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "client/aftload/load.h"
#include "client/aftload/report.h"
#include "client/lib/address.h"
#include "client/tool/connection_flags.h"
#include "client/tool/exit_code.h"
#include "client/tool/flag_values.h"
#include "client/tool/interrupt.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

constexpr uint32_t kMaxStreams = 10'000;
constexpr uint32_t kMaxTokens = 1'000'000'000;
constexpr uint32_t kMaxPromptBytes = 16 << 20;
constexpr char kHttpAddress[] = "127.0.0.1:8080";

struct Flags {
  LoadOptions load;
  ConnectionFlags connection;
  std::vector<std::string> targets;
  std::vector<double> rates;
  std::optional<uint32_t> streams;
  std::optional<uint64_t> requests;
  std::optional<double> duration;
  std::optional<double> drain;
  std::string max_tokens = "64";
  std::string prompt;
  std::string prompt_bytes = "64";
  std::string prompt_file;
  std::vector<std::string> goodput;
  int slow_ms = 1000;
  int deadline_ms = 1000;
  bool json = false;
  bool progress = false;
  bool allow_remote = false;
};

void AddLoadFlags(CLI::App& app, Flags& flags) {
  LoadOptions& load = flags.load;
  app.add_option(
         "--streams", flags.streams,
         "Number of requests at the same time, default 1; with --rate the limit, default 10000")
      ->check(CLI::Range(uint32_t{1}, kMaxStreams));
  CLI::Option* const rate =
      app.add_option(
             "--rate", flags.rates,
             "Open loop: send this number of requests a second as a Poisson process; latencies "
             "count from the scheduled time. Several rates, R1,R2,..: one run for each. "
             "Default: closed loop, in which each stream sends when its last request has "
             "ended")
          ->delimiter(',')
          ->check(Between(1e-3, 1e6));
  app.add_option(
         "--burstiness", load.arrivals.burstiness,
         "Shape of the gamma-distributed gaps between requests: below 1 bursts, above 1 more even")
      ->needs(rate)
      ->check(Between(1e-3, 1e3))
      ->capture_default_str();
  app.add_option("--connections", load.connections,
                 "Number of TCP connections to each target, which the streams share")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--requests", flags.requests,
                 "End after this many requests; default 64, or 1000000 with --duration")
      ->check(CLI::Range(1, 100'000'000));
  app.add_option("--duration", flags.duration,
                 "Send no new request after this time; default 60, or 3600 with --requests")
      ->type_name("SECONDS")
      ->check(Between(0.001, 86400));
  app.add_option(
         "--drain", flags.drain,
         "Time after that in which running requests may end before they are cut; default 0, or 60 "
         "with --rate")
      ->type_name("SECONDS")
      ->check(Between(0, 86400));
  app.add_option(
         "--warmup", load.warmup,
         "Number of requests before the measurement; with --rate, at most 16 of them at once")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option(
         "--attempts", load.attempts,
         "How often a refused request is sent, the first time included; its latency includes all "
         "attempts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag(
      "--resume", load.resume,
      "Resume streams that break, at any server, and send requests again that break before they "
      "begin");
  app.add_option(
         "--verify", load.verify,
         "Send only N different requests, each of which is answered once before the load. Tokens "
         "that are lost, repeated or changed in comparison are counted, and fail the run")
      ->type_name("N")
      ->check(CLI::Range(1, 100'000));
  app.add_option(
         "--goodput", flags.goodput,
         "Limits in ms that a good request keeps: ttft:MS to the first token, tpot:MS per further "
         "token, e2el:MS for the whole request")
      ->type_name("METRIC:MS");
}

void AddWorkloadFlags(CLI::App& app, Flags& flags) {
  WorkloadOptions& workload = flags.load.workload;
  app.add_option("--model", workload.model, "Model; may be left out when the server has only one");
  app.add_option(
         "--max-tokens", flags.max_tokens,
         "Number of tokens to generate for each request; the model's end of text is ignored. A "
         "number, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA[:MAX] or file:PATH")
      ->type_name("LENGTH")
      ->capture_default_str();
  CLI::Option* const prompt =
      app.add_option("--prompt", flags.prompt, "Text that every request has as its prompt");
  CLI::Option* const bytes =
      app.add_option(
             "--prompt-bytes", flags.prompt_bytes,
             "Prompts of random words, of this length and different every time; same forms as "
             "--max-tokens")
          ->type_name("LENGTH")
          ->excludes(prompt)
          ->capture_default_str();
  CLI::Option* const file =
      app.add_option(
             "--prompt-file", flags.prompt_file,
             "File with prompts, used in turn, one per line; the lines of a .jsonl file have "
             "\"prompt\" and perhaps \"output_tokens\"")
          ->excludes(prompt)
          ->excludes(bytes);
  app.add_option("--prefix-bytes", workload.prefix_bytes,
                 "Length of a prefix that begins the random words and that other requests share")
      ->excludes(prompt)
      ->excludes(file)
      ->check(CLI::Range(uint32_t{0}, kMaxPromptBytes))
      ->capture_default_str();
  app.add_option("--prefixes", workload.prefixes, "Number of different prefixes")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--cancel-share", workload.cancel_share,
                 "Share of the requests that are cancelled after a random number of their tokens")
      ->check(Between(0, 1));
  app.add_option("--slow-share", workload.slow_share, "Share of the requests that are read slowly")
      ->check(Between(0, 1));
  app.add_option("--slow-ms", flags.slow_ms, "Pause of these requests before each message")
      ->check(CLI::Range(1, 86'400'000))
      ->capture_default_str();
  app.add_option("--deadline-share", workload.deadline_share,
                 "Share of the requests that have a deadline")
      ->check(Between(0, 1));
  app.add_option("--deadline-ms", flags.deadline_ms,
                 "Deadline of these requests, from the scheduled time")
      ->check(CLI::Range(1, 86'400'000))
      ->capture_default_str();
  app.add_option(
         "--seed", workload.seed,
         "Seed of prompts, lengths, arrivals and sampling; another one makes other random prompts")
      ->capture_default_str();
}

void AddFlags(CLI::App& app, Flags& flags) {
  AddConnectionFlags(app, flags.connection);
  app.add_option(
      "--target", flags.targets,
      "Servers to use instead of --address; requests go to each in turn, healthy or not");
  app.add_flag("--allow-remote", flags.allow_remote, "Allow targets on other machines");
  AddLoadFlags(app, flags);
  AddWorkloadFlags(app, flags);
  CLI::Option* const http =
      app.add_flag("--http", flags.load.http,
                   absl::StrCat("Use OpenAI's HTTP API instead of gRPC, with streams of POST "
                                "/v1/completions; --address or AFT_ADDRESS is HOST:PORT, default ",
                                kHttpAddress, "; each stream has its own connection"));
  // HTTP/1.1 has no streams within a connection, and its events have neither token ids nor counts
  // of tokens.
  for (const char* name : {"--connections", "--resume", "--verify", "--cancel-share"}) {
    http->excludes(app.get_option(name));
  }
  app.add_flag("--progress", flags.progress,
               "Print a line on standard error every second; the default on a terminal");
  app.add_flag("--json", flags.json,
               "Print one JSON object per run, each on a line, instead of a table");
}

// Both bounds always hold. The default of one is so large that it does not limit the other.
void SetBounds(Flags& flags) {
  LoadOptions& load = flags.load;
  const bool open = !flags.rates.empty();
  load.arrivals.requests = flags.requests.value_or(flags.duration ? 1'000'000 : 64);
  load.arrivals.duration = ToMilliseconds(flags.duration.value_or(flags.requests ? 3600 : 60));
  load.arrivals.seed = load.workload.seed;
  load.drain = ToMilliseconds(flags.drain.value_or(open ? 60 : 0));
  load.streams = flags.streams.value_or(open ? kMaxStreams : 1);
}

absl::Status SetTargets(Flags& flags) {
  if (flags.targets.empty()) flags.targets = {flags.connection.address};
  for (const std::string& target : flags.targets) {
    flags.connection.address = target;
    AFT_RETURN_IF_ERROR(CheckAddress(target));
    if (!flags.allow_remote && !IsLoopback(target)) {
      return absl::InvalidArgumentError(
          absl::StrCat(target, " is not on this machine: use --allow-remote if you mean it"));
    }
    AFT_ASSIGN_OR_RETURN(ClientOptions client, MakeClientOptions(flags.connection));
    flags.load.targets.push_back(std::move(client));
  }
  return absl::OkStatus();
}

absl::Status SetWorkload(Flags& flags) {
  WorkloadOptions& workload = flags.load.workload;
  AFT_ASSIGN_OR_RETURN(workload.max_tokens, Distribution::Parse(flags.max_tokens, kMaxTokens));
  AFT_ASSIGN_OR_RETURN(workload.prompt_bytes,
                       Distribution::Parse(flags.prompt_bytes, kMaxPromptBytes));
  workload.slow_pause = std::chrono::milliseconds(flags.slow_ms);
  workload.deadline = std::chrono::milliseconds(flags.deadline_ms);
  if (!flags.prompt.empty()) {
    workload.prompts = {{.text = flags.prompt, .max_tokens = std::nullopt}};
  } else if (!flags.prompt_file.empty()) {
    AFT_ASSIGN_OR_RETURN(workload.prompts, ReadPrompts(flags.prompt_file));
  }
  if (workload.cancel_share + workload.slow_share + workload.deadline_share > 1 + 1e-9) {
    return absl::InvalidArgumentError("the shares of requests must be at most 1 together");
  }
  return absl::OkStatus();
}

absl::Status SetLimits(Flags& flags) {
  Limits& limits = flags.load.limits;
  for (const std::string& text : flags.goodput) {
    const std::vector<std::string> parts = absl::StrSplit(text, ':');
    double ms = 0;
    if (parts.size() != 2 || !absl::SimpleAtod(parts[1], &ms) || !(ms >= 0)) {
      return absl::InvalidArgumentError(absl::StrCat("--goodput ", text, " is not METRIC:MS"));
    }
    if (parts[0] == "ttft") {
      limits.ttft_ms = ms;
    } else if (parts[0] == "tpot") {
      limits.tpot_ms = ms;
    } else if (parts[0] == "e2el") {
      limits.e2el_ms = ms;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--goodput ", text, ": the metrics are ttft, tpot and e2el"));
    }
  }
  return absl::OkStatus();
}

absl::Status SetUp(Flags& flags) {
  SetBounds(flags);
  AFT_RETURN_IF_ERROR(SetTargets(flags));
  AFT_RETURN_IF_ERROR(SetWorkload(flags));
  return SetLimits(flags);
}

void ShowProgress(const Progress& progress) {
  absl::FPrintF(stderr, "%6.0f s  %d done, %d failed, %d running, %d waiting, %d tokens\n",
                progress.seconds, progress.completed, progress.failed, progress.running,
                progress.waiting, progress.tokens);
}

// Makes one run after the other. Returns the exit code.
int Measure(Flags& flags, CancelToken& cancel, const Interrupt& interrupt) {
  Output output;
  std::function<void(const Progress&)> on_progress;
  if (flags.progress || isatty(STDERR_FILENO) == 1) on_progress = ShowProgress;
  if (flags.rates.empty()) flags.rates = {0};
  bool good = true;
  for (const double rate : flags.rates) {
    flags.load.arrivals.rate = rate;
    const absl::StatusOr<LoadReport> report = RunLoad(flags.load, cancel, on_progress);
    if (!report.ok()) {
      PrintError("aftload", report.status().message());
      return interrupt.exit_code() != 0 ? interrupt.exit_code() : ExitCodeOf(report.status());
    }
    output.Write(flags.json ? JsonReport(flags.load, *report) : TextReport(flags.load, *report));
    if (const int code = OutputCode("aftload", output); code != kExitOk) return code;
    good &= report->stats.normal().errors.empty() && !report->stats.differences.any();
    if (interrupt.exit_code() != 0) return interrupt.exit_code();
    // The server may have the prompts of this run in its prefix cache.
    if (flags.load.verify == 0) flags.load.first_index += kRunStride;
  }
  return good ? kExitOk : kExitFailed;
}

int Run(int argc, char** argv) {
  const std::unique_ptr<CLI::App> owner = MakeApp("Measures an AFT server under load.", "aftload");
  CLI::App& app = *owner;
  app.footer(kExitCodeHelp);
  Flags flags;
  AddFlags(app, flags);
  if (const auto code = ParseCommandLine(app, argc, argv, {.usage_code = kExitUsage})) return *code;
  if (flags.load.http && app.count("--address") == 0) flags.connection.address = kHttpAddress;
  if (const absl::Status status = SetUp(flags); !status.ok()) {
    PrintError("aftload", status.message());
    return kExitUsage;
  }
  CancelToken cancel;
  const Interrupt interrupt(cancel);  // made before the client: see Interrupt
  return Measure(flags, cancel, interrupt);
}

}  // namespace
}  // namespace aft::client

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): it ends the program
  // gRPC's log lines would mix with the output; errors are reported as statuses. No thread runs
  // yet.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // NOLINT(concurrency-mt-unsafe)
  return aft::client::Run(argc, argv);
}
