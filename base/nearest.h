#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft {

// Returns the most similar of `words`, or an empty string if none is similar enough to be a typing
// error. The time is proportional to the length of `word`, so callers limit it.
std::string Nearest(absl::string_view word, const std::vector<std::string>& words);

// Returns "; did you mean MEANT?", or an empty string if `meant` is empty.
std::string DidYouMean(absl::string_view meant);

}  // namespace aft
