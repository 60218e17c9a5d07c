#pragma once

#include <CLI/App.hpp>
#include <string>

// Texts made from the descriptions of a program's flags and subcommands, in addition to --help.
namespace aft {

// A script that completes subcommands, flags and the values of flags that have a fixed list of
// them; other values are completed as names of files.
std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);

// The manual page (section 1) as roff for man(1).
std::string ManualPage(const CLI::App& app, const std::string& version);

}  // namespace aft
