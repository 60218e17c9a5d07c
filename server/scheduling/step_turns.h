#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/scheduling/fair_queue.h"
#include "server/scheduling/sequence.h"
#include "server/scheduling/step.h"
#include "server/scheduling/step_shares.h"
#include "server/scheduling/time.h"

namespace aft::server {

// Decides what each sequence has of a step that clients share, and the turns of sequences of one
// client in such steps. "Shared steps" in README.md has the rule. Thread-compatible.
class StepTurns {
 public:
  struct Options {
    int64_t max_step_tokens = 2;
    Duration itl_target{};  // a step that is no longer is not shared
  };
  static constexpr uint64_t kSmallStep = 64;
  // More than one, because a state that the step before has read is still in the caches, and
  // because tokens of a stream that come soon after each other share a message.
  static constexpr int kTurnSteps = 4;

  // `queue` must outlive this; every sequence has an account there.
  StepTurns(const Options& options, const FairQueue& queue) : options_(options), queue_(queue) {}

  // To be called when a sequence gets a slot, and when it gives the slot up.
  void Add(Sequence& sequence);
  void Remove(Sequence& sequence);

  // If a step with all that sequences may have (Sequence::allowed_) would be too long, lowers what
  // they may have, and sets step.shared and step.small. `prompt_budget` is the limit for prompt
  // tokens in a step, `cost` the cost of steps in seconds.
  void Share(int64_t prompt_budget, const StepCost& cost, Step& step);

 private:
  ClientShare& ShareOf(size_t turn);
  bool HasUnequalClients(int64_t prompt_budget);
  void TakeTurns(bool small);

  const Options options_;
  const FairQueue& queue_;
  std::vector<Sequence*> turns_;     // sequences that own a slot, in the order of their turns
  uint64_t shared_steps_ = 0;        // steps that could be shared
  std::vector<ClientShare> shares_;  // of the clients that share the step; kept for its memory
};

}  // namespace aft::server
