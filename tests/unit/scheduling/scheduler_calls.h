#pragma once

#include <cstdint>
#include <vector>

#include "server/scheduling/continuous_scheduler.h"

namespace aft::server {

inline ContinuousScheduler::Options Options(int32_t slots, int64_t max_step_tokens,
                                            int max_in_flight = 1) {
  return {.slots = slots, .max_step_tokens = max_step_tokens, .max_in_flight = max_in_flight};
}

// Makes a prompt of ascending tokens.
inline std::vector<TokenId> Prompt(int64_t size, TokenId first = 0) {
  std::vector<TokenId> prompt(static_cast<size_t>(size));
  for (TokenId& token : prompt) token = first++;
  return prompt;
}

// Counts the tokens of each row. If the step is null, there are no rows.
inline std::vector<int64_t> RowSizes(const Step* step) {
  std::vector<int64_t> sizes;
  if (step == nullptr) return sizes;
  for (const StepRow& row : step->input.rows) {
    sizes.push_back(static_cast<int64_t>(row.tokens.size()));
  }
  return sizes;
}

// Plays the model: every kLast row of a sequence that has not been removed samples `token`.
inline void SampleAll(ContinuousScheduler& scheduler, const Step& step, TokenId token = 1) {
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (step.sequences[i] == nullptr || step.input.rows[i].output != RowOutput::kLast) continue;
    scheduler.Sampled(*step.sequences[i], token);
  }
}

}  // namespace aft::server
