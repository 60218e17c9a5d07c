#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft::client {

// Shows several texts one after the other, although their parts arrive in any order. The first text
// is shown as it arrives. The next one follows when the text before has finished.
// Thread-compatible.
class InTurn {
 public:
  // `apart`: there is a blank line between texts.
  InTurn(size_t texts, bool apart) : texts_(texts), apart_(apart) {}

  // Adds a part of a text, and returns what can be shown now. An index beyond the number of texts
  // adds texts.
  std::string Take(size_t index, absl::string_view part, bool finished);

 private:
  struct Text {
    std::string waiting;  // not shown yet
    bool finished = false;
  };

  std::vector<Text> texts_;
  const bool apart_;
  size_t shown_ = 0;  // the text whose turn it is
  bool line_ended_ = true;
};

}  // namespace aft::client
