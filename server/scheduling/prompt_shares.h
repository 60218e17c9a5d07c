#pragma once

#include <cstdint>
#include <vector>

#include "server/scheduling/fair_queue.h"
#include "server/scheduling/sequence.h"

namespace aft::server {

// Shares what a step has for prompts among them. The oldest prompt of each client has a token, so
// that none of them stops. Half of all tokens goes to the oldest prompt of the best class. The rest
// goes to the prompt with the fewest tokens left, then to the next one, and so on, the better
// classes first. So prompts are read one after the other, short ones before long ones, and most of
// them end earlier than if they were read together. Thread-compatible.
class PromptShares {
 public:
  // `queue` must outlive this; every sequence has an account there.
  explicit PromptShares(const FairQueue& queue) : queue_(queue) {}

  // Sets how many tokens each of these prompts has in a step (Sequence::chunk_): at most
  // Sequence::allowed_, at most `room` in all, and at most `limit` unless the first tokens of all
  // clients and one more need that. `prompts`: those that have had their slots for longest come
  // first. REQUIRES: `room` exceeds the number of prompts.
  void Share(int64_t limit, int64_t room, const std::vector<Sequence*>& prompts);

 private:
  const FairQueue& queue_;
  uint64_t steps_ = 0;  // shared so far
};

}  // namespace aft::server
