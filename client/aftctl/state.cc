#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "client/aftctl/commands.h"
#include "client/aftctl/json.h"
#include "client/lib/aft_client.h"
#include "client/lib/error_details.h"
#include "client/tool/exit_code.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

struct StateFlags {
  std::string action;
  std::vector<std::string> ids;
  std::string model;
  double deadline = 10;
};

// Names the state or file in an error, unless there is only one.
absl::Status About(const std::string& id, const StateFlags& flags, const absl::Status& status) {
  if (status.ok() || flags.ids.size() == 1) return status;
  absl::Status named(status.code(), absl::StrCat(id, ": ", status.message()));
  SetErrorDetails(GetErrorDetails(status), named);
  return named;
}

// Appends a line for each state with one of the ids, or for all states.
absl::Status Show(Client& client, const StateFlags& flags, std::string& text) {
  for (const std::string& id : flags.ids) {
    const auto state = client.GetState(id);
    if (!state.ok()) return About(id, flags, state.status());
    text += JsonLine(*state);
  }
  if (flags.action == "get") return absl::OkStatus();
  const auto states = client.ListStates();
  if (!states.ok()) return states.status();
  for (const v1::State& state : *states) text += JsonLine(state);
  return absl::OkStatus();
}

// Fetches the bytes of one state.
absl::Status Export(Client& client, const StateFlags& flags, std::string& bytes) {
  AFT_ASSIGN_OR_RETURN(bytes, client.ExportState(flags.ids.front()));
  return absl::OkStatus();
}

// Stores the state in each file, and appends a line for each. Stores none if a file cannot be read.
absl::Status Import(Client& client, const StateFlags& flags, std::string& text) {
  std::vector<std::string> files;
  for (const std::string& path : flags.ids) {
    absl::StatusOr<std::string> bytes = ReadFile(path, std::numeric_limits<size_t>::max());
    if (!bytes.ok()) return CallerError(bytes.status().message());
    files.push_back(*std::move(bytes));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    const auto state = client.ImportState(flags.model, files[i]);
    if (!state.ok()) return About(flags.ids[i], flags, state.status());
    text += JsonLine(*state);
  }
  return absl::OkStatus();
}

int RunState(Client& client, const StateFlags& flags) {
  if (flags.ids.empty() != (flags.action == "list") ||
      (flags.action == "export" && flags.ids.size() != 1)) {
    return UsageError(absl::InvalidArgumentError(
        "get and delete need ids, export one, import files; list takes none"));
  }
  std::string text;
  absl::Status status;
  if (flags.action == "export") {
    status = Export(client, flags, text);
  } else if (flags.action == "import") {
    status = Import(client, flags, text);
  } else if (flags.action == "delete") {
    for (const std::string& id : flags.ids) {
      status = About(id, flags, client.DeleteState(id));
      if (!status.ok()) break;
    }
  } else {
    status = Show(client, flags, text);
  }
  Output output;
  output.Write(text);
  if (const int code = OutputCode("aftctl", output); code != kExitOk) return code;
  return status.ok() ? kExitOk : ReportError(status);
}

}  // namespace

Command AddState(CLI::App& app, const CommonFlags& common) {
  auto flags = std::make_shared<StateFlags>();
  app.add_option(
         "action", flags->action,
         "get: print these states, one JSON object per line; list: print all states of "
         "this client; delete: delete these states; export: write the bytes of one state to "
         "standard output; import: store the states in files of such bytes")
      ->required()
      ->check(CLI::IsMember({"get", "list", "delete", "export", "import"}));
  app.add_option(
      "id", flags->ids,
      "Ids of states, as generate --store and score --store print them; for import, files");
  app.add_option("--model", flags->model,
                 "For import: the model; may be left out when the server has only one");
  AddDeadline(app, flags->deadline);
  return [&common, flags] {
    return RunUnary(common, flags->deadline,
                    [&](Client& client) { return RunState(client, *flags); });
  };
}

}  // namespace aft::client
