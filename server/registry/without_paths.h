#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft::server {

// Returns the text with each absolute path, and each path that begins with one of `folders`, cut to
// its last name. It is fit for clients that must not learn how this machine is laid out.
std::string WithoutPaths(absl::string_view text, const std::vector<std::string>& folders);

}  // namespace aft::server
