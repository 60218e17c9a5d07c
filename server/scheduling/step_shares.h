#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/scheduling/time.h"

namespace aft::server {

// What a step takes, about, in any unit of time: a part that does not depend on its tokens, and a
// part for each of them.
struct StepCost {
  double fixed = 0;
  double token = 0;  // 0: tokens cost nothing, so that steps are never shared
};

// One client's part of a step.
struct ClientShare {
  double weight = 1;
  // That it could use: one for each stream that decodes, and as many of its prompts as a step has
  // room for. At least 1.
  int64_t tokens = 1;
  int64_t prompt_tokens = 0;  // of these; for the caller
  size_t oldest = 0;          // the lower, the longer has one of its sequences waited for a row
  int64_t in_step = 0;        // the tokens that the step may have: the result
  bool cut = false;           // these are fewer than it could use

  double load() const { return static_cast<double>(tokens) / weight; }
};

// Shares a step among clients. The smallest client is the one that could use the fewest tokens for
// its weight, and its slowdown is the length of the step over that of a step with its tokens alone.
// A step that all clients share by their weights in time slows it down by the sum of all weights
// over its own: twice, of two equal clients. ShareStep keeps the step below one more than that, or
// to `target` when that is longer: clients get tokens by their weights, at least one each, and what
// a client does not need goes to the others. So a client that needs no more than its share has all
// of its tokens in every step. Nothing is cut when all clients could use the same number of tokens
// for their weights.
//
// `small`: instead, no client has more tokens for its weight than the smallest, so that the
// difference to other steps shows what a token costs.
//
// Sets `in_step` and `cut` of all and changes their order. Returns whether any client is cut.
bool ShareStep(const StepCost& cost, double target, bool small, std::vector<ClientShare>& clients);

// Learns what steps cost in which sequences decode. A token of a prompt may cost more or less than
// one that is decoded: what is learnt is the cost of those that steps have. Thread-compatible.
class StepCostMeter {
 public:
  // A step of so many tokens has taken `time`, of which it was worked on for `work`. On a machine
  // that others want too a step also waits for a core, however few tokens it has, so what a token
  // costs is learnt from the work alone. `small`: as of ShareStep.
  void Observe(bool small, int64_t tokens, Duration work, Duration time);

  // In seconds of `time`, once a step was observed. Until small steps were, kUnknownRatio is
  // assumed.
  StepCost cost() const;

 private:
  // The fixed part of a step over that of a token.
  static constexpr double kUnknownRatio = 16;
  // It counts as much as a difference of so many tokens between small steps and others: where they
  // hardly differ, what was measured is noise.
  static constexpr double kAssumedTokens = 0.5;
  // Of what was seen before, after each step of its kind: some five steps count.
  static constexpr double kKeep = 0.8;
  // A step that takes longer than this many times what was expected was held up by something else.
  static constexpr double kHeldUp = 2;

  struct Mean {
    double tokens = 0;  // 0: none was seen
    double seconds = 0;
    void Add(double step_tokens, double step_seconds);
  };

  Mean small_;  // of the work
  Mean full_;   // likewise
  Mean time_;   // of steps that are not small
  double ratio_ = kUnknownRatio;
};

}  // namespace aft::server
