#include <memory>
#include <string>
#include <vector>

#include "client/aftctl/commands.h"
#include "client/aftctl/json.h"
#include "client/tool/exit_code.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

struct StateFlags {
  std::string action;
  std::vector<std::string> ids;
  double deadline = 10;
};

// What the server has of the ids, or all of it, a line each.
absl::Status Show(Client& client, const StateFlags& flags, std::string& text) {
  for (const std::string& id : flags.ids) {
    const auto state = client.GetState(id);
    if (!state.ok()) return state.status();
    text += JsonLine(*state);
  }
  if (flags.action == "get") return absl::OkStatus();
  const auto states = client.ListStates();
  if (!states.ok()) return states.status();
  for (const v1::State& state : *states) text += JsonLine(state);
  return absl::OkStatus();
}

int RunState(Client& client, const StateFlags& flags) {
  if (flags.ids.empty() != (flags.action == "list")) {
    return UsageError(absl::InvalidArgumentError("get and delete need ids, list takes none"));
  }
  std::string text;
  absl::Status status;
  if (flags.action == "delete") {
    for (const std::string& id : flags.ids) {
      status = client.DeleteState(id);
      if (!status.ok()) break;
    }
  } else {
    status = Show(client, flags, text);
  }
  Output output;
  if (!output.Write(text)) return kExitFailed;
  return status.ok() ? kExitOk : ReportError(status);
}

}  // namespace

Command AddState(CLI::App& app, const CommonFlags& common) {
  auto flags = std::make_shared<StateFlags>();
  app.add_option("action", flags->action,
                 "get: one JSON object per state and line; list: all of "
                 "this client; delete")
      ->required()
      ->check(CLI::IsMember({"get", "list", "delete"}));
  app.add_option("id", flags->ids, "States, as generate --store and score --store name them");
  AddDeadline(app, flags->deadline);
  return [&common, flags] {
    return RunUnary(common, flags->deadline,
                    [&](Client& client) { return RunState(client, *flags); });
  };
}

}  // namespace aft::client
