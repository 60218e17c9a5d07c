#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft::server {

// The text, with the last name alone of each absolute path, and of each path that begins with one
// of `folders`: what a client may read that is not to learn how this machine is laid out.
std::string WithoutPaths(absl::string_view text, const std::vector<std::string>& folders);

}  // namespace aft::server
