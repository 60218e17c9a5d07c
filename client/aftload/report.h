#pragma once

#include <string>

#include "client/aftload/load_options.h"

namespace aft::client {

// A table for people.
std::string TextReport(const LoadOptions& options, const LoadReport& report);

// One JSON object on one line, with the names of vLLM's benchmark where it has one;
// client/README.md lists them.
std::string JsonReport(const LoadOptions& options, const LoadReport& report);

}  // namespace aft::client
