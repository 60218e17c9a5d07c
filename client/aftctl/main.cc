// aftctl: generates, scores and encodes text, lists models and asks for the health of an AFT
// server.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <array>
#include <string>
#include <utility>

#include "client/aftctl/commands.h"
#include "client/tool/exit_code.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

int Run(int argc, char** argv) {
  CLI::App app("Talks to an AFT server: generates, scores and encodes text, lists models.",
               "aftctl");
  app.set_version_flag("--version", std::string("aftctl ") + AFT_VERSION);
  app.footer(kExitCodeHelp);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("aftctl: ") + error.what() + "\naftctl --help lists what there is\n";
  });
  app.require_subcommand(1);
  app.fallthrough();  // --address is good before and after the subcommand

  CommonFlags flags;
  app.add_option("--address", flags.address, "The server, HOST:PORT")
      ->envname("AFT_ADDRESS")
      ->capture_default_str();

  CLI::App& generate = *app.add_subcommand("generate", "Continue a prompt, streaming the text");
  CLI::App& score =
      *app.add_subcommand("score", "How likely a language model finds a text, token by token");
  CLI::App& encode = *app.add_subcommand("encode", "The vectors of a text under an encoder");
  CLI::App& models = *app.add_subcommand("models", "List the served models, or describe one");
  CLI::App& health = *app.add_subcommand("health", "Exit with 0 only when the server is SERVING");
  const std::array<std::pair<CLI::App*, Command>, 5> commands = {{
      {&generate, AddGenerate(generate, flags)},
      {&score, AddScore(score, flags)},
      {&encode, AddEncode(encode, flags)},
      {&models, AddModels(models, flags)},
      {&health, AddHealth(health, flags)},
  }};

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Prints help, version or the mistake. Help and version are no mistakes.
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  for (const auto& [subcommand, command] : commands) {
    if (subcommand->parsed()) return command();
  }
  return kExitUsage;
}

}  // namespace
}  // namespace aft::client

int main(int argc, char** argv) {
  // gRPC's own log lines would mix with ours; errors reach us as statuses.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  return aft::client::Run(argc, argv);
}
