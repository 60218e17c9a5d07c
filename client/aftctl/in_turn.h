#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "aft/v1/inference.pb.h"

namespace aft::client {

// Shows the texts of several sequences one after the other, although they arrive at the same time.
// The first text is shown as it arrives. The next one follows when the text before has finished.
// Thread-compatible.
class InTurn {
 public:
  // REQUIRES: sequences >= 1, and events have smaller numbers of sequences.
  explicit InTurn(uint32_t sequences) : texts_(sequences) {}

  // Returns what can be shown once `event` has arrived. The text of each sequence begins with a
  // line that has its number and seed.
  std::string Take(const v1::GenerateResponse& event);

 private:
  struct Text {
    std::string waiting;  // not shown yet
    bool finished = false;
  };

  std::string Title() const;

  std::vector<Text> texts_;
  size_t shown_ = 0;  // the sequence whose turn it is
  uint64_t seed_ = 0;
  bool line_ended_ = true;
};

}  // namespace aft::client
