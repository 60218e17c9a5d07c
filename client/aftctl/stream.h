#pragma once

#include <CLI/App.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "client/aftctl/commands.h"
#include "client/aftctl/json.h"
#include "client/lib/aft_client.h"
#include "client/tool/flag_values.h"
#include "client/tool/output.h"

// Functions that all commands use which stream the server's answer to a text.
namespace aft::client {

// The flags of these commands.
struct StreamFlags {
  std::string prompt = "-";
  std::string file;
  std::vector<std::string> texts;  // score and encode only
  bool lines = false;              // score and encode only
  std::string model;
  std::string model_version;
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;
  double deadline = 600;
  std::string request_id;
  std::string traceparent;
  bool json = false;
};

// Adds --previous and --store, for requests that have these fields.
template <typename Request>
void AddTurn(CLI::App& app, Request& request) {
  app.add_option_function<std::string>(
         "--previous",
         [&request](const std::string& id) { request.mutable_previous()->set_state_id(id); },
         "Continue from this state; --prompt \"\" continues without new text")
      ->type_name("ID");
  app.add_flag_callback(
      "--store", [&request] { request.mutable_store(); },
      "Store the state after the text, and print its id at the end");
}

// AddText adds the flags for the text; AddCall adds those that every call has. `purpose`: for
// example "Text to continue".
void AddText(CLI::App& app, const std::string& purpose, StreamFlags& flags);
void AddCall(CLI::App& app, StreamFlags& flags);

// Adds --text and --lines, for several texts in one call. REQUIRES: AddText.
void AddTexts(CLI::App& app, StreamFlags& flags);

// Adds all flags of StreamFlags except --text and --lines. Returns --json.
CLI::Option* AddStream(CLI::App& app, const std::string& purpose, StreamFlags& flags);

// Reads the text that the flags name, byte for byte. Errors as ReadFile's (base/read_file.h).
absl::StatusOr<std::string> ReadText(const StreamFlags& flags);

// Sets the text or texts that the flags name. Errors: as ReadText.
template <typename Request>
absl::Status SetTexts(const StreamFlags& flags, Request& request) {
  if constexpr (requires { request.add_texts(); }) {
    for (const std::string& text : flags.texts) SetText(text, *request.add_texts());
    if (!flags.texts.empty()) return absl::OkStatus();
  }
  AFT_ASSIGN_OR_RETURN(std::string text, ReadText(flags));
  if constexpr (requires { request.add_texts(); }) {
    if (flags.lines) {
      for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
        SetText(std::string(line), *request.add_texts());
      }
      return absl::OkStatus();
    }
  }
  SetText(std::move(text), request);
  return absl::OkStatus();
}

template <typename Request>
void SetModel(const StreamFlags& flags, Request& request) {
  request.set_model(flags.model);
  request.set_model_version(flags.model_version);
}

// Connects, lets `call` make one call, and converts its status to the exit code. Errors are printed
// on standard error. A signal cancels the call; `call` cancels it if a write fails.
int RunCall(const CommonFlags& common, const StreamFlags& flags,
            absl::FunctionRef<absl::Status(Client&, const CallOptions&, Output&)> call);

// Makes one of Client's streaming calls with the texts that the flags name. Prints every event on
// standard output as it arrives, as `show(event)` or as JSON. After a successful call, it calls
// `sum_up(result, output)`. Returns the exit code.
template <typename Request, typename Response, typename Result, typename Show, typename SumUp>
int RunStream(const CommonFlags& common, const StreamFlags& flags, Request request,
              absl::StatusOr<Result> (Client::*method)(const Request&,
                                                       const EventCallback<Response>&,
                                                       const CallOptions&),
              const Show& show, const SumUp& sum_up) {
  if (absl::Status status = SetTexts(flags, request); !status.ok()) return UsageError(status);
  SetModel(flags, request);
  request.set_priority(flags.priority);
  return RunCall(common, flags, [&](Client& client, const CallOptions& options, Output& output) {
    const auto on_event = [&](const Response& event) {
      std::string shown = flags.json ? JsonLine(event) : show(event);
      if (output.is_terminal()) shown = ForTerminal(shown);
      if (!output.Write(shown)) options.cancel->Cancel();
    };
    const absl::StatusOr<Result> result = (client.*method)(request, on_event, options);
    output.EndLine();
    if (result.ok()) sum_up(*result, output);
    return result.status();
  });
}

}  // namespace aft::client
