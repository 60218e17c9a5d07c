#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/aftctl/commands.h"
#include "client/tool/exit_code.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

struct RepositoryFlags {
  std::string action;
  std::string name;
  double deadline = 600;
};

// One line for each version: name, version, state and, if there is one, the error.
std::string ListVersions(const v1::ListResponse& list) {
  std::string text;
  for (const v1::Model& model : list.models()) {
    for (const v1::ModelVersion& version : model.versions()) {
      absl::StrAppend(&text, model.name(), "\t", version.version(), "\t",
                      EnumWord(v1::ModelState_Name(version.state()), "MODEL_STATE_"));
      if (!version.error().empty()) absl::StrAppend(&text, "\t", version.error());
      text += "\n";
    }
  }
  return text;
}

int RunRepository(Client& client, const RepositoryFlags& flags) {
  if (flags.name.empty() != (flags.action == "list")) {
    return UsageError(absl::InvalidArgumentError("load and unload need a model; list takes none"));
  }
  if (flags.action != "list") {
    const absl::Status status =
        flags.action == "load" ? client.LoadModel(flags.name) : client.UnloadModel(flags.name);
    return status.ok() ? kExitOk : ReportError(status);
  }
  const auto list = client.ListModels();
  if (!list.ok()) return ReportError(list.status());
  Output output;
  output.Write(ForTerminal(ListVersions(*list)));
  return OutputCode("aftctl", output);
}

}  // namespace

Command AddRepository(CLI::App& app, const CommonFlags& common) {
  auto flags = std::make_shared<RepositoryFlags>();
  app.add_option(
         "action", flags->action,
         "list: print name, version and state of all models, separated by tabs; load: load the new "
         "versions of a model, and return when they serve; unload: unload a model, and return when "
         "it is gone")
      ->required()
      ->check(CLI::IsMember({"list", "load", "unload"}));
  app.add_option("name", flags->name, "Model to load or unload");
  AddDeadline(app, flags->deadline);
  return [&common, flags] {
    return RunUnary(common, flags->deadline,
                    [&](Client& client) { return RunRepository(client, *flags); });
  };
}

}  // namespace aft::client
