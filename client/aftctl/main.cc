// aftctl: generates, scores and encodes text, classifies images, lists models and checks the health
// of an AFT server.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "base/command_line.h"
#include "client/aftctl/commands.h"
#include "client/tool/exit_code.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

int Run(int argc, char** argv) {
  CLI::App app("Talks to an AFT server: generates, scores and encodes text, lists models.",
               "aftctl");
  app.footer(kExitCodeHelp);
  app.require_subcommand(1);
  app.fallthrough();  // --address and the like may stand before or after the subcommand

  CommonFlags flags;
  AddCommonFlags(app, flags);

  std::map<const CLI::App*, Command> commands;
  for (const auto& [name, what, add] : kSubcommands) {
    CLI::App& subcommand = *app.add_subcommand(name, what);
    commands[&subcommand] = add(subcommand, flags);
  }

  if (const auto code = ParseCommandLine(app, argc, argv, {.usage_code = kExitUsage})) return *code;
  return commands.at(app.get_subcommands().front())();
}

}  // namespace
}  // namespace aft::client

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): it ends the program
  // gRPC's log lines would mix with the output; errors are reported as statuses. No thread runs
  // yet.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // NOLINT(concurrency-mt-unsafe)
  return aft::client::Run(argc, argv);
}
