#pragma once

#include <CLI/App.hpp>

#include "aft/v1/inference.pb.h"

namespace aft::client {

// Adds the options that say how to sample and when to stop. `request` must outlive the parsing;
// what is not asked for stays unset.
void AddGenerationFlags(CLI::App& app, v1::GenerateRequest& request);

}  // namespace aft::client
