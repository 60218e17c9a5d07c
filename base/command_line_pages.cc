#include "base/command_line_pages.h"

#include <CLI/CLI.hpp>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace aft {
namespace {

struct Flag {
  std::vector<std::string> names{};  // "--help", "-h"
  std::string about{};
  bool has_value = false;
  std::string type{};                 // of the value, "INT"
  std::vector<std::string> values{};  // all that are allowed; empty: any of the type
};

struct Command {
  std::string path;  // the subcommands that lead here, each after a space; empty for the program
  std::string about{};
  std::vector<Flag> flags{};
  std::vector<std::string> positionals{};
  std::vector<const CLI::App*> subcommands{};
};

// CLI11 puts a fixed list of values into the name of the type: "TEXT:{a,b}", or "{a->1,b->2}".
void SplitType(const std::string& text, Flag& flag) {
  const size_t begin = text.find('{');
  flag.type = text.substr(0, text.find(':'));
  if (begin == std::string::npos) return;
  const std::string list = text.substr(begin + 1, text.find('}') - begin - 1);
  for (const absl::string_view value : absl::StrSplit(list, ',')) {
    flag.values.emplace_back(value.substr(0, value.find("->")));
  }
}

// Adds the options and subcommands of a command. CLI11 makes groups of options subcommands without
// a name.
void Describe(const CLI::App& app, Command& command) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) command.positionals.push_back(option->get_name(true));
    if (!option->nonpositional()) continue;
    Flag flag{.about = option->get_description(),
              .has_value = option->get_items_expected_max() > 0};
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    if (flag.has_value) SplitType(option->get_type_name(), flag);
    command.flags.push_back(std::move(flag));
  }
  for (const CLI::App* one : app.get_subcommands({})) {
    if (one->get_name().empty()) {
      Describe(*one, command);
    } else {
      command.subcommands.push_back(one);
    }
  }
}

// Adds the program, then its subcommands, each before its own subcommands.
void DescribeAll(const CLI::App& app, const std::string& path, std::vector<Command>& commands) {
  Describe(app, commands.emplace_back(Command{.path = path, .about = app.get_description()}));
  const std::vector<const CLI::App*> below = commands.back().subcommands;
  for (const CLI::App* one : below) {
    DescribeAll(*one, absl::StrCat(path, " ", one->get_name()), commands);
  }
}

std::vector<Command> DescribeAll(const CLI::App& app) {
  std::vector<Command> commands;
  DescribeAll(app, "", commands);
  return commands;
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// The flags of a command, and those of the program, which are accepted after a subcommand too.
std::vector<Flag> AcceptedFlags(const std::vector<Command>& commands, const Command& command) {
  std::vector<Flag> flags = command.flags;
  if (&command == &commands.front()) return flags;
  const std::vector<Flag>& common = commands.front().flags;
  for (const Flag& flag : common) {
    if (flag.names.front() != "--help") flags.push_back(flag);
  }
  return flags;
}

// Shell code, the same in both shells, that sets `command` to the path of the subcommands in the
// first `$2` words of the array `words`.
std::string FindCommand(const std::vector<Command>& commands) {
  std::string paths;
  for (const Command& command : commands) {
    if (!command.path.empty())
      absl::StrAppend(&paths, paths.empty() ? "" : "|", Quoted(command.path));
  }
  if (paths.empty()) return "  local command=''\n";
  return absl::StrCat(
      "  local command='' word\n"
      "  for word in \"${before[@]}\"; do\n"
      "    case \"$command $word\" in ",
      paths, ") command+=\" $word\" ;; esac\n  done\n");
}

// "'--format'|'-f'"
std::string Pattern(const Command& command, const Flag& flag) {
  return absl::StrJoin(flag.names, "|", [&](std::string* out, const std::string& name) {
    absl::StrAppend(out, Quoted(absl::StrCat(command.path, ":", name)));
  });
}

// Cases of `case "$command:$previous"` for the values of flags: `files`, or `list` with them.
std::string ValueCases(const std::vector<Command>& commands, absl::string_view list,
                       absl::string_view files) {
  std::string cases;
  for (const Command& command : commands) {
    for (const Flag& flag : AcceptedFlags(commands, command)) {
      if (!flag.has_value) continue;
      absl::StrAppend(&cases, "    ", Pattern(command, flag), ") ",
                      flag.values.empty()
                          ? std::string(files)
                          : absl::StrReplaceAll(list, {{"%", absl::StrJoin(flag.values, " ")}}),
                      "; return ;;\n");
    }
  }
  return cases;
}

// roff takes '-' for a hyphen, and a line that begins with '.' or ''' for a request.
std::string Roff(absl::string_view text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"\n", "\n\\&"}});
  return absl::StrCat("\\&", escaped);
}

void AppendFlags(const std::vector<Flag>& flags, std::string& page) {
  for (const Flag& flag : flags) {
    absl::StrAppend(&page, ".TP\n\\fB", Roff(absl::StrJoin(flag.names, ", ")), "\\fR");
    if (flag.has_value) absl::StrAppend(&page, " \\fI", Roff(flag.type), "\\fR");
    absl::StrAppend(&page, "\n", Roff(flag.about), "\n");
    if (!flag.values.empty()) {
      absl::StrAppend(&page, "(", Roff(absl::StrJoin(flag.values, ", ")), ")\n");
    }
  }
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  const std::vector<Command> commands = DescribeAll(app);
  std::string words;
  for (const Command& command : commands) {
    absl::StrAppend(&words, "    ", Quoted(command.path), ") words='");
    for (const Flag& flag : AcceptedFlags(commands, command)) {
      absl::StrAppend(&words, flag.names.front(), " ");
    }
    for (const CLI::App* one : command.subcommands) absl::StrAppend(&words, one->get_name(), " ");
    absl::StrAppend(&words, "' ;;\n");
  }
  const std::string function = absl::StrCat("_", absl::StrReplaceAll(app.get_name(), {{"-", "_"}}));
  return absl::StrCat(
      "# Completion of ", app.get_name(), " in bash. Made by ", app.get_name(),
      " --completion bash.\n", function, "() {\n",
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words=''\n"
      // In `--flag=VALUE` bash makes `=` a word.
      "  [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD-2]}\n"
      "  [[ $current == = ]] && current=''\n"
      "  local before=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\")\n",
      FindCommand(commands), "  case \"$command:$previous\" in\n",
      ValueCases(commands, "COMPREPLY=($(compgen -W '%' -- \"$current\"))", "COMPREPLY=()"),
      "  esac\n  case \"$command\" in\n", words,
      "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n}\n"
      "complete -o default -F ",
      function, " ", app.get_name(), "\n");
}

std::string ZshCompletion(const CLI::App& app) {
  const std::vector<Command> commands = DescribeAll(app);
  const auto described = [](absl::string_view name, absl::string_view about) {
    return Quoted(absl::StrCat(absl::StrReplaceAll(name, {{":", "\\:"}}), ":", about)) + " ";
  };
  std::string lists;
  for (const Command& command : commands) {
    absl::StrAppend(&lists, "    ", Quoted(command.path), ")\n      flags=(");
    for (const Flag& flag : AcceptedFlags(commands, command)) {
      absl::StrAppend(&lists, described(flag.names.front(), flag.about));
    }
    absl::StrAppend(&lists, ")\n      commands=(");
    for (const CLI::App* one : command.subcommands) {
      absl::StrAppend(&lists, described(one->get_name(), one->get_description()));
    }
    absl::StrAppend(&lists, ") ;;\n");
  }
  return absl::StrCat("#compdef ", app.get_name(), "\n# Completion of ", app.get_name(),
                      " in zsh. Made by ", app.get_name(),
                      " --completion zsh.\n"
                      "local current=${words[CURRENT]} previous=${words[CURRENT-1]}\n"
                      "local -a before=(\"${(@)words[2,CURRENT-1]}\") flags commands\n"
                      "[[ $current == --*=* ]] && compset -P '*=' && previous=${current%%=*}\n",
                      FindCommand(commands), "  case \"$command:$previous\" in\n",
                      ValueCases(commands, "compadd -- %", "_files"),
                      "  esac\n  case \"$command\" in\n", lists,
                      "  esac\n"
                      "  if [[ $current == -* ]]; then\n"
                      "    _describe -o flag flags\n"
                      "  elif (( $#commands )); then\n"
                      "    _describe command commands\n"
                      "  else\n"
                      "    _files\n"
                      "  fi\n");
}

std::string ManualPage(const CLI::App& app, const std::string& version) {
  const std::vector<Command> commands = DescribeAll(app);
  const Command& program = commands.front();
  std::string page =
      absl::StrCat(".TH ", app.get_name(), " 1 \"\" \"", app.get_name(), " ", version,
                   "\"\n.SH NAME\n", Roff(app.get_name()), " \\- ", Roff(program.about),
                   "\n.SH SYNOPSIS\n\\fB", Roff(app.get_name()), "\\fR [flags]");
  for (const std::string& name : program.positionals) absl::StrAppend(&page, " [", Roff(name), "]");
  if (!program.subcommands.empty()) absl::StrAppend(&page, " \\fIsubcommand\\fR [flags]");
  absl::StrAppend(&page, "\n.SH FLAGS\n");
  AppendFlags(program.flags, page);
  if (!program.subcommands.empty()) absl::StrAppend(&page, ".SH SUBCOMMANDS\n");
  for (size_t i = 1; i < commands.size(); ++i) {
    absl::StrAppend(&page, ".SS", Roff(commands[i].path), "\n", Roff(commands[i].about), "\n");
    AppendFlags(commands[i].flags, page);
  }
  if (!app.get_footer().empty()) {
    absl::StrAppend(&page, ".SH NOTES\n.nf\n", Roff(app.get_footer()), "\n.fi\n");
  }
  return page;
}

}  // namespace aft
