#include <errno.h>
#include <string.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/aftctl/commands.h"
#include "client/aftctl/json.h"
#include "client/tool/exit_code.h"
#include "client/tool/interrupt.h"
#include "client/tool/output.h"

namespace aft::client {

void AddDeadline(CLI::App& app, double& seconds) {
  const char* const what =
      seconds > 0 ? "Give up after this time" : "Give up after this time; 0: never";
  app.add_option("--deadline", seconds, what)
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e7))
      ->capture_default_str();
}

std::chrono::milliseconds ToMilliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

CLI::Option* AddCall(CLI::App& app, CallFlags& flags) {
  app.add_option("--model", flags.model, "Model; may be left out when the server has only one");
  AddDeadline(app, flags.deadline);
  app.add_option("--request-id", flags.request_id, "Name of the request in the server's log");
  return app.add_flag("--json", flags.json, "One JSON object per event and line");
}

std::unique_ptr<Client> OpenClient(const ClientOptions& options) {
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(options);
  if (client.ok()) return *std::move(client);
  PrintError("aftctl", client.status().message());
  return nullptr;
}

int RunStream(const CommonFlags& common, const CallFlags& flags,
              absl::FunctionRef<absl::Status(const StreamCall&)> run,
              absl::FunctionRef<void(Output&, const absl::Status&, bool)> fail) {
  Output output;
  CancelToken cancel;
  const Interrupt interrupt(cancel);  // before the client: see there
  const std::unique_ptr<Client> client = OpenClient({.address = common.address});
  if (client == nullptr) return kExitUsage;
  const absl::Status status = run({.client = *client,
                                   .output = output,
                                   .cancel = cancel,
                                   .options = {.deadline = ToMilliseconds(flags.deadline),
                                               .request_id = flags.request_id,
                                               .cancel = &cancel}});
  if (output.error() == EPIPE) return kExitBrokenPipe;
  if (output.error() != 0) {
    PrintError("aftctl", absl::StrCat("cannot write the output: ", strerror(output.error())));
    return kExitFailed;
  }
  if (status.ok()) return kExitOk;
  const int signal_code = interrupt.exit_code();
  fail(output, status, signal_code != 0);
  return signal_code != 0 ? signal_code : ExitCodeOf(status);
}

void ReportStreamError(Output& output, bool json, const absl::Status& status, bool interrupted) {
  if (json) output.Write(Line(ErrorToJson(status)));
  const ErrorDetails details = GetErrorDetails(status);
  if (interrupted && status.code() == absl::StatusCode::kCancelled) {
    PrintError("aftctl", absl::StrCat("interrupted: cancelled on the server after ",
                                      TokenCount(details.received_tokens)));
    return;
  }
  ReportError(status);
  if (!details.usage) return;
  const uint64_t done =
      uint64_t{details.usage->generated_tokens()} + details.usage->scored_tokens();
  std::string line = absl::StrCat("server's count: ", TokenCount(done));
  if (details.timings) {
    absl::StrAppendFormat(&line, " in %.1f ms",
                          static_cast<double>(details.timings->total_us()) / 1000);
  }
  PrintSummary(line);
}

int ReportError(const absl::Status& status) {
  const ErrorDetails details = GetErrorDetails(status);
  std::string message(status.message());
  if (!details.request_id.empty()) absl::StrAppend(&message, " (request ", details.request_id, ")");
  PrintError("aftctl", message);
  return ExitCodeOf(status);
}

void PrintSummary(const std::string& line) { std::fprintf(stderr, "[%s]\n", line.c_str()); }

}  // namespace aft::client
