#include "base/command_line.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line_pages.h"
#include "base/nearest.h"
#include "base/version.h"

namespace aft {
namespace {

void AddFlagNames(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* chosen : app.get_subcommands()) AddFlagNames(*chosen, names);
}

// The deepest subcommand that the command line has named.
const CLI::App& Chosen(const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  return chosen.empty() ? app : Chosen(*chosen.back());
}

std::string Meant(const CLI::App& app, const std::string& word,
                  const std::vector<FlagHint>& hints) {
  for (const FlagHint& hint : hints) {
    if (word == hint.given) return hint.use;
  }
  std::vector<std::string> names;
  if (absl::StartsWith(word, "-")) {
    AddFlagNames(app, names);
  } else {
    for (const CLI::App* one : Chosen(app).get_subcommands({})) names.push_back(one->get_name());
  }
  return Nearest(word, names);
}

// Says what is wrong. An unknown argument is reported before a missing required one, because it may
// have been meant for that one.
std::string Mistake(const CLI::App& app, const CLI::Error& error,
                    const std::vector<FlagHint>& hints) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  if (unknown.empty()) return error.what();
  const std::string word = unknown.front().substr(0, unknown.front().find('='));
  const bool is_flag = absl::StartsWith(word, "-");
  const bool names_subcommand = !is_flag && !Chosen(app).get_subcommands({}).empty();
  const std::string meant = Meant(app, word, hints);
  return absl::StrCat(is_flag            ? "unknown flag "
                      : names_subcommand ? "unknown subcommand "
                                         : "unexpected argument ",
                      word, DidYouMean(meant));
}

}  // namespace

std::unique_ptr<CLI::App> MakeApp(std::string about, std::string name) {
  return std::make_unique<CLI::App>(std::move(about), std::move(name));
}

CLI::Validator Between(double least, double most) {
  const auto number = [](const std::string& text) {
    return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is not a number" : "";
  };
  return CLI::Range(least, most) & CLI::Validator(number, "");
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv, const ProgramInfo& info) {
  app.set_version_flag(
      "--version",
      absl::StrCat(app.get_name(), " ", kVersion, "\ngit revision ", kGitRevision, "\nbuild type ",
                   kBuildType, info.libraries.empty() ? "" : "\n", info.libraries));
  app.add_option_function<std::string>(
         "--completion",
         [&app](const std::string& shell) {
           std::cout << (shell == "bash" ? BashCompletion(app) : ZshCompletion(app));
           throw CLI::Success();
         },
         "Print a script by which the shell completes this command line, and exit")
      ->check(CLI::IsMember({"bash", "zsh"}));
  app.add_flag_callback(
      "--man-page",
      [&app] {
        std::cout << ManualPage(app, kVersion);
        throw CLI::Success();
      },
      "Print the manual page in roff, and exit");
  app.failure_message([&](const CLI::App*, const CLI::Error& error) {
    const CLI::App& chosen = Chosen(app);
    const std::string command =
        &chosen == &app ? app.get_name() : absl::StrCat(app.get_name(), " ", chosen.get_name());
    return absl::StrCat(app.get_name(), ": ", Mistake(app, error, info.hints), " (see ", command,
                        " --help)\n");
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : info.usage_code;  // prints the help, version or mistake
  }
  return std::nullopt;
}

}  // namespace aft
