#include "server/scheduling/prompt_shares.h"

#include <algorithm>
#include <utility>

namespace aft::server {

void PromptShares::Share(int64_t limit, int64_t room, const std::vector<Sequence*>& prompts) {
  if (prompts.empty()) return;
  ++steps_;
  int64_t clients = 0;
  for (Sequence* sequence : prompts) {
    uint64_t& last_step = queue_.account(*sequence)->prompt_step;
    sequence->chunk_ = std::exchange(last_step, steps_) == steps_ ? 0 : 1;
    clients += sequence->chunk_;
  }
  const int64_t budget = std::min(room, std::max(limit, clients + 1));
  int64_t left = budget - clients;
  const auto give = [&left](Sequence& sequence, int64_t most) {
    const int64_t tokens = std::min({most, left, sequence.allowed_ - sequence.chunk_});
    sequence.chunk_ += tokens;
    left -= tokens;
  };
  Sequence& first = **std::min_element(
      prompts.begin(), prompts.end(),
      [](const Sequence* a, const Sequence* b) { return a->service_class() < b->service_class(); });
  give(first, (budget + 1) / 2 - first.chunk_);
  std::vector<Sequence*> by_length = prompts;
  std::stable_sort(by_length.begin(), by_length.end(), [](const Sequence* a, const Sequence* b) {
    return std::pair(a->service_class(), a->prompt_left()) <
           std::pair(b->service_class(), b->prompt_left());
  });
  for (Sequence* sequence : by_length) give(*sequence, left);
}

}  // namespace aft::server
