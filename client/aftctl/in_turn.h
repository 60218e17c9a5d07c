#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "aft/v1/inference.pb.h"

namespace aft::client {

// The texts of several sequences that come at the same time, one after the other: the first as it
// comes, the next, with what has come of it, when the one before has finished. Thread-compatible.
class InTurn {
 public:
  // REQUIRES: sequences >= 1; those of the events are below that.
  explicit InTurn(uint32_t sequences) : texts_(sequences) {}

  // What is to be shown now that `event` has come. A sequence begins with a line that names it and
  // its seed.
  std::string Take(const v1::GenerateResponse& event);

 private:
  struct Text {
    std::string waiting;  // to be shown
    bool finished = false;
  };

  std::string Title() const;

  std::vector<Text> texts_;
  size_t shown_ = 0;  // the one whose turn it is
  uint64_t seed_ = 0;
  bool line_ended_ = true;
};

}  // namespace aft::client
