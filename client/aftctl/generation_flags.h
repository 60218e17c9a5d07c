#pragma once

#include <CLI/App.hpp>
#include <initializer_list>

#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"

namespace aft::client {

// Adds a flag for each option that aft/v1/generation_options.proto describes in these parts of a
// request, or that are called so themselves. `request` must outlive the parsing; what is not asked
// for stays unset.
void AddGenerationFlags(CLI::App& app, v1::GenerateRequest& request,
                        std::initializer_list<absl::string_view> parts = {"sampling", "stop",
                                                                          "cache_salt"});

}  // namespace aft::client
