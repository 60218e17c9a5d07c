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
#include "base/utf8.h"
#include "client/aftctl/commands.h"
#include "client/aftctl/json.h"
#include "client/lib/aft_client.h"
#include "client/tool/output.h"

// The commands that stream what the server makes of a text.
namespace aft::client {

// Their options.
struct StreamFlags {
  std::string prompt = "-";
  std::string file;
  std::vector<std::string> texts;  // of score and encode
  bool lines = false;              // likewise
  std::string model;
  std::string model_version;
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;
  double deadline = 600;
  std::string request_id;
  std::string traceparent;
  bool json = false;
};

// --previous and --store, of requests that have them.
template <typename Request>
void AddTurn(CLI::App& app, Request& request) {
  app.add_option_function<std::string>(
         "--previous",
         [&request](const std::string& id) { request.mutable_previous()->set_state_id(id); },
         "Go on from this state; --prompt \"\" goes on without new text")
      ->type_name("ID");
  app.add_flag_callback(
      "--store", [&request] { request.mutable_store(); },
      "Store the state after the text, and name it at the end");
}

// Where the text comes from; what every call has. `purpose`: "Text to continue".
void AddText(CLI::App& app, const std::string& purpose, StreamFlags& flags);
void AddCall(CLI::App& app, StreamFlags& flags);

// --text and --lines, for several texts in one call. REQUIRES: AddText.
void AddTexts(CLI::App& app, StreamFlags& flags);

// Adds all but the last; returns --json.
CLI::Option* AddStream(CLI::App& app, const std::string& purpose, StreamFlags& flags);

// The text that the flags name, byte for byte. Errors: NOT_FOUND and the like for a file that
// cannot be read, RESOURCE_EXHAUSTED beyond 64 MiB.
absl::StatusOr<std::string> ReadText(const StreamFlags& flags);

// In the field for it: `raw` where it is not valid UTF-8.
template <typename Request>
void SetText(std::string text, Request& request) {
  if (ToValidUtf8(text) == text) {
    request.set_text(std::move(text));
  } else {
    request.set_raw(std::move(text));
  }
}

// In the request: the text that the flags name, or each of them in `texts`. Errors: as ReadText.
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

// Connects, lets `call` make one call and turns its end into the exit code, saying on standard
// error what went wrong. A signal cancels the call, and so does `call` when a write fails.
int RunCall(const CommonFlags& common, const StreamFlags& flags,
            absl::FunctionRef<absl::Status(Client&, const CallOptions&, Output&)> call);

// Makes one of Client's streaming calls about the texts that the flags name. Every event goes to
// standard output as it comes: as `show(event)` has it, or as JSON. `sum_up(result, output)` comes
// at the end of a call that went well. Returns the exit code.
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
