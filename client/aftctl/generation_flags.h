#pragma once

#include <CLI/App.hpp>
#include <initializer_list>

#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"

namespace aft::client {

// Adds a flag for each option in aft/v1/generation_options.proto that belongs to one of `parts`, or
// that has such a name itself. `request` must outlive the parsing. Options without a flag on the
// command line stay unset.
void AddGenerationFlags(CLI::App& app, v1::GenerateRequest& request,
                        std::initializer_list<absl::string_view> parts = {
                            "sampling", "stop", "cache_salt", "initial_state"});

}  // namespace aft::client
