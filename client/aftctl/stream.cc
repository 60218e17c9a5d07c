#include "client/aftctl/stream.h"

#include <stdlib.h>
#include <unistd.h>

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/read_file.h"
#include "client/lib/call.h"
#include "client/tool/exit_code.h"
#include "client/tool/interrupt.h"

namespace aft::client {
namespace {

void ReportStreamError(Output& output, bool json, const absl::Status& status, bool interrupted) {
  if (json) output.Write(JsonErrorLine(status));
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

}  // namespace

void AddText(CLI::App& app, const std::string& purpose, StreamFlags& flags) {
  CLI::Option* const prompt =
      app.add_option("--prompt,PROMPT", flags.prompt,
                     purpose + ". Without it, or if it is -, the text is read from standard input");
  app.add_option("--file", flags.file, "Read the text from this file, byte for byte")
      ->excludes(prompt);
}

void AddCall(CLI::App& app, StreamFlags& flags) {
  app.add_option("--model", flags.model, "Model; may be left out when the server has only one");
  app.add_option("--model-version", flags.model_version,
                 "Version of the model; default: the newest")
      ->type_name("VERSION");
  AddDeadline(app, flags.deadline);
  app.add_option("--request-id", flags.request_id, "Id of the request in the server's log");
  // The user need not know of a value from the environment, so a bad one is ignored, as servers do.
  const char* const inherited = getenv("TRACEPARENT");  // NOLINT(concurrency-mt-unsafe)
  if (inherited != nullptr && CheckTraceparent(inherited).ok()) flags.traceparent = inherited;
  app.add_option("--traceparent", flags.traceparent,
                 "W3C Trace Context: make the call a part of this trace; default: the environment "
                 "variable TRACEPARENT, unless it is invalid");
}

void AddTexts(CLI::App& app, StreamFlags& flags) {
  CLI::Option* const text =
      app.add_option("--text", flags.texts, "One text; repeat it to send several texts in one call")
          ->allow_extra_args(false)
          ->excludes("--prompt")
          ->excludes("--file");
  app.add_flag("--lines", flags.lines,
               "Treat each line of the text as a text of its own, all in one call")
      ->excludes(text);
}

CLI::Option* AddStream(CLI::App& app, const std::string& purpose, StreamFlags& flags) {
  static const std::map<std::string, v1::Priority> kPriorities = {
      {"interactive", v1::PRIORITY_INTERACTIVE},
      {"normal", v1::PRIORITY_NORMAL},
      {"batch", v1::PRIORITY_BATCH}};
  AddText(app, purpose, flags);
  AddCall(app, flags);
  app.add_option("--priority", flags.priority,
                 "Urgency of the request; batch work may pause in the middle. Default: batch for "
                 "score, otherwise normal")
      ->transform(CLI::CheckedTransformer(kPriorities))
      ->type_name("interactive|normal|batch");
  return app.add_flag(
      "--json", flags.json,
      "Print one JSON object per event and line: the messages of aft/v1/inference.proto "
      "in protobuf's JSON mapping, in which 64-bit integers are strings");
}

absl::StatusOr<std::string> ReadText(const StreamFlags& flags) {
  if (!flags.file.empty()) return ReadFile(flags.file);
  if (flags.prompt != "-") return flags.prompt;
  if (isatty(STDIN_FILENO) == 1) {
    constexpr absl::string_view kHint = "Type the text, then Ctrl-D:\n";
    [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, kHint.data(), kHint.size());
  }
  return ReadStandardInput();
}

int RunCall(const CommonFlags& common, const StreamFlags& flags,
            absl::FunctionRef<absl::Status(Client&, const CallOptions&, Output&)> call) {
  Output output;
  CancelToken cancel;
  const Interrupt interrupt(cancel);  // made before the client: see Interrupt
  absl::StatusOr<ClientOptions> options = MakeClientOptions(common);
  if (!options.ok()) return UsageError(options.status());
  const auto client = Client::Create(*std::move(options));
  if (!client.ok()) return UsageError(client.status());
  std::vector<Resumed> resumed;
  const absl::Status status =
      call(**client,
           {.deadline = ToMilliseconds(flags.deadline),
            .request_id = flags.request_id,
            .traceparent = flags.traceparent,
            .cancel = &cancel,
            .on_resuming = PrintResuming(output),
            .on_resumed = [&](const Resumed& one) { resumed.push_back(one); }},
           output);
  PrintResumed(resumed);
  if (const int code = OutputCode("aftctl", output); code != kExitOk) return code;
  if (status.ok()) return kExitOk;
  const int signal_code = interrupt.exit_code();
  ReportStreamError(output, flags.json, status, signal_code != 0);
  return signal_code != 0 ? signal_code : ExitCodeOf(status);
}

}  // namespace aft::client
