#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft::server {

// Cuts each absolute path in the text, and each path that begins with one of `folders`, to its last
// name. So clients do not learn the folders of this machine.
std::string WithoutPaths(absl::string_view text, const std::vector<std::string>& folders);

}  // namespace aft::server
