#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "client/aftctl/commands.h"
#include "client/tool/exit_code.h"
#include "client/tool/flag_values.h"
#include "client/tool/output.h"

namespace aft::client {

void AddCommonFlags(CLI::App& app, CommonFlags& flags) {
  AddConnectionFlags(app, flags);
  app.add_option(
         "--max-resumes", flags.max_resumes,
         "How often in a row, without new tokens in between, to resume a generation or scoring "
         "that breaks; 0: never")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
}

absl::StatusOr<ClientOptions> MakeClientOptions(const CommonFlags& flags) {
  AFT_ASSIGN_OR_RETURN(ClientOptions options,
                       MakeClientOptions(static_cast<const ConnectionFlags&>(flags)));
  options.max_resumes = flags.max_resumes;
  return options;
}

void AddDeadline(CLI::App& app, double& seconds) {
  app.add_option("--deadline", seconds,
                 "Give up each request to the server after this time; 0: never")
      ->type_name("SECONDS")
      ->check(Between(0, 1e7))
      ->capture_default_str();
}

int RunUnary(const CommonFlags& flags, double deadline, absl::FunctionRef<int(Client&)> run) {
  absl::StatusOr<ClientOptions> options = MakeClientOptions(flags);
  if (!options.ok()) return UsageError(options.status());
  if (deadline > 0) options->connect_timeout = ToMilliseconds(deadline);
  options->deadline = ToMilliseconds(deadline);
  const auto client = Client::Create(*std::move(options));
  return client.ok() ? run(**client) : UsageError(client.status());
}

int UsageError(const absl::Status& status) {
  PrintError("aftctl", status.message());
  return kExitUsage;
}

int ReportError(const absl::Status& status) {
  const ErrorDetails details = GetErrorDetails(status);
  std::string message(status.message());
  if (!details.request_id.empty()) absl::StrAppend(&message, " (request ", details.request_id, ")");
  PrintError("aftctl", message);
  return ExitCodeOf(status);
}

void PrintSummary(const std::string& line) {
  std::fprintf(stderr, "[%s]\n", ForTerminal(line).c_str());
}

std::function<void(const Resuming&)> PrintResuming(Output& output) {
  return [&output](const Resuming& resuming) {
    output.EndLine();
    std::string line = absl::StrCat("the stream broke, resuming (", resuming.attempt, " of ",
                                    resuming.attempts, ")");
    if (resuming.pause.count() > 0) {
      absl::StrAppendFormat(&line, " in %.1f s",
                            static_cast<double>(resuming.pause.count()) / 1000);
    }
    PrintSummary(absl::StrCat(line, ": ", resuming.cause.message()));
  };
}

void PrintResumed(const std::vector<Resumed>& resumed) {
  for (const Resumed& one : resumed) {
    PrintSummary(absl::StrCat(
        "the stream was resumed after ", TokenCount(one.tokens), ": ", one.cause.message(),
        one.exact ? "" : "; that server computes differently, so the answer may differ"));
  }
}

std::string EnumWord(absl::string_view name, absl::string_view prefix) {
  absl::ConsumePrefix(&name, prefix);
  return name.empty() ? "unknown" : absl::AsciiStrToLower(name);
}

}  // namespace aft::client
