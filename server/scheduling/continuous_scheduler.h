#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "model/api/model_runner.h"
#include "server/scheduling/sequence.h"
#include "server/scheduling/slot_pool.h"

namespace aft::server {

// One planned step.
struct Step {
  StepInput input;
  // sequences[i] owns input.rows[i]; null once it is removed: nobody wants the row's result.
  std::vector<Sequence*> sequences;
  std::vector<Sequence*> started;  // got their slot in this step: BindSlot before Submit
  int64_t prompt_tokens = 0;       // of all rows
  int64_t tokens = 0;

  bool empty() const { return sequences.empty(); }
};

// Continuous batching as pure logic: no thread, lock or clock.
//
// Steps are planned by Schedule and end with Retire, in the same order; up to `max_in_flight` may
// be between the two. With more than one, a step is planned before the results of the one before
// are known: its decode rows consume kLastSampled. A sequence that turns out to have ended is
// Removed; the row that it has in the next step is then wasted, and its slot is free when that step
// retires.
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
  // REQUIRES: slots >= 1, max_step_tokens >= slots + 1, max_in_flight >= 1.
  ContinuousScheduler(int32_t slots, int64_t max_step_tokens, int max_in_flight = 1);

  // Appends a sequence to the waiting queue. It must outlive its stay here.
  // REQUIRES: phase kIdle, and it was never added before.
  void Add(Sequence& sequence);

  // Takes a sequence out, whatever its phase. Its slot is free once no step in flight names it.
  void Remove(Sequence& sequence);

  // Plans the next step. Null, and no step is in flight for it, when there is nothing to run: no
  // sequence is live, or what is left of each hangs on results that are under way. The step is
  // valid until it retires and Schedule is called again. REQUIRES: in_flight() < max_in_flight; of
  // steps that have retired, Sampled was called for every kLast row and sequences in phase kScored
  // were removed, except where sequences[i] is null.
  const Step* Schedule();

  // The oldest step in flight is done with: the runner has finished it. The result is valid until
  // the next call of Schedule. REQUIRES: in_flight() > 0.
  const Step& Retire();

  // The model drew `token` for a kLast row of the step that retired last.
  void Sampled(Sequence& sequence, TokenId token);

  int in_flight() const { return static_cast<int>(in_flight_.size()); }

  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t live() const { return static_cast<int32_t>(live_.size()); }
  const SlotPool& slots() const { return slots_; }

 private:
  // A planned step, and the slots that are free when it retires.
  struct Flight {
    Step step;
    std::vector<int32_t> releases;
  };

  void StartWaiting();
  void AddDecodeRow(Sequence& sequence);
  void AskForToken(Sequence& sequence, StepRow& row);
  void SharePrompts(int64_t budget);
  void AddPromptRow(Sequence& sequence, int64_t tokens);
  StepRow& AddRow(Sequence& sequence);

  const int64_t max_step_tokens_;
  const int max_in_flight_;
  SlotPool slots_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> live_;                    // own a slot; in arrival order
  std::deque<std::unique_ptr<Flight>> in_flight_;  // oldest first
  std::unique_ptr<Flight> retired_;
  std::vector<std::unique_ptr<Flight>> spare_;  // kept for their memory
  Step* step_ = nullptr;                        // while Schedule fills it

  // Scratch of Schedule, kept for its memory.
  std::vector<Sequence*> prompts_;
  std::vector<int64_t> chunks_;
};

}  // namespace aft::server
