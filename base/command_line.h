#pragma once

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace aft {

// A flag that users of other servers try, and what this program has instead.
struct FlagHint {
  const char* given;  // "--port"
  const char* use;    // "--listen_address=127.0.0.1:PORT"
};

// The facts about a program that ParseCommandLine needs.
struct ProgramInfo {
  int usage_code;                 // its exit code after a bad command line
  std::vector<FlagHint> hints{};  // checked before similar spellings
  std::string libraries{};        // a line for --version, "LibTorch 2.11.0"
};

// Makes a command line without flags. A file that constructs CLI::App itself takes 5 s longer to
// compile.
std::unique_ptr<CLI::App> MakeApp(std::string about, std::string name);

// Checks the range of a number with a fraction. CLI::Range alone accepts nan, because every
// comparison with nan is false.
CLI::Validator Between(double least, double most);

// Parses the command line of a program in the way that all programs of this project share. Returns
// nullopt if the program is to run. Otherwise the program has to end with the returned exit code: 0
// after one of the flags that this adds (--help, --version, --completion, --man-page), or
// `usage_code` after a mistake.
//
// A mistake is one line on standard error. It names the flag or subcommand that was probably meant:
// the one of a hint, or the one with the most similar spelling.
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv, const ProgramInfo& info);

}  // namespace aft
