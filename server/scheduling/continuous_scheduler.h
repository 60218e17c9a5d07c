#ifndef AFT_SERVER_SCHEDULING_CONTINUOUS_SCHEDULER_H_
#define AFT_SERVER_SCHEDULING_CONTINUOUS_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "model/runtime/model_runner.h"
#include "server/scheduling/sequence.h"
#include "server/scheduling/slot_pool.h"

namespace aft::server {

// One planned step.
struct Step {
  StepInput input;
  std::vector<Sequence*> sequences;  // sequences[i] owns input.rows[i]
  std::vector<Sequence*> started;    // got their slot in this step: BindSlot before Submit
  int64_t prompt_tokens = 0;         // of all rows
  int64_t tokens = 0;

  bool empty() const { return sequences.empty(); }
};

// Continuous batching as pure logic: no thread, lock or clock.
//
// Every step holds one row for each live decode and splits the rest of the token budget among the
// live prompts. Sequences get slots in arrival order. Because the budget exceeds the number of
// slots, every live sequence advances in every step: neither decodes nor prompts can starve.
//
// How prompts share: the oldest takes up to half of what is left, the next up to half of the rest,
// and so on, each at least one token; what short prompts leave over goes to the oldest that can use
// it. So prompts finish in about the order in which they came, and one very long prompt still
// leaves half of the budget to those behind it. A text to score is a prompt whose rows report the
// log-probabilities of the tokens that follow; nothing is decoded after it.
//
// Thread-compatible.
class ContinuousScheduler {
 public:
  // REQUIRES: slots >= 1, max_step_tokens >= slots + 1.
  ContinuousScheduler(int32_t slots, int64_t max_step_tokens);

  // Appends a sequence to the waiting queue. It must outlive its stay here.
  // REQUIRES: phase kIdle, and it was never added before.
  void Add(Sequence& sequence);

  // Takes a sequence out, whatever its phase; its slot is free at once. A sequence of the last step
  // whose result is not known yet may be removed as well, once the runner is done with that step.
  void Remove(Sequence& sequence);

  // Plans the next step; empty when nothing is live. The result is valid until the next call.
  // REQUIRES: Sampled was called for every kLast row of the step before, or its sequence removed;
  // sequences in phase kScored were removed.
  const Step& Schedule();

  // The model drew `token` for a kLast row; the sequence's next row consumes it.
  void Sampled(Sequence& sequence, TokenId token);

  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t live() const { return static_cast<int32_t>(live_.size()); }
  const SlotPool& slots() const { return slots_; }

 private:
  void StartWaiting();
  void SharePrompts(int64_t budget);
  void AddPromptRow(Sequence& sequence, int64_t tokens);
  StepRow& AddRow(Sequence& sequence);

  const int64_t max_step_tokens_;
  SlotPool slots_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> live_;  // own a slot; in arrival order
  Step step_;

  // Scratch of Schedule, kept for its memory.
  std::vector<Sequence*> prompts_;
  std::vector<int64_t> chunks_;
};

}  // namespace aft::server

#endif  // AFT_SERVER_SCHEDULING_CONTINUOUS_SCHEDULER_H_
