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

// What each sequence has of a step that clients share, and the turns that sequences of one client
// take in such steps: the rule is part of ContinuousScheduler's comment. Thread-compatible.
class StepTurns {
 public:
  struct Options {
    int64_t max_step_tokens = 2;
    Duration itl_target{};  // no step is shared that is no longer
  };
  static constexpr uint64_t kSmallStep = 64;
  // More than one, because a state that the step before has read is still in the caches, and
  // because a stream's tokens that come soon after each other share a message.
  static constexpr int kTurnSteps = 4;

  // `queue` must outlive this; every sequence has an account there.
  StepTurns(const Options& options, const FairQueue& queue) : options_(options), queue_(queue) {}

  // The sequence has got a slot, or gives it up.
  void Add(Sequence& sequence);
  void Remove(Sequence& sequence);

  // Where a step with all that sequences may have (Sequence::allowed_) would be too long: lowers
  // what they may have, and sets step.shared and step.small. `prompt_budget`: tokens of prompts in
  // a step. `cost`: of steps, in seconds.
  void Share(int64_t prompt_budget, const StepCost& cost, Step& step);

 private:
  ClientShare& ShareOf(size_t turn);
  bool HasUnequalClients(int64_t prompt_budget);
  void TakeTurns(bool small);

  const Options options_;
  const FairQueue& queue_;
  std::vector<Sequence*> turns_;     // own a slot; in the order of their turns
  uint64_t shared_steps_ = 0;        // in which a client could have had more
  std::vector<ClientShare> shares_;  // of the clients that share the step; kept for its memory
};

}  // namespace aft::server
