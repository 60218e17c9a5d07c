#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/scheduling/time.h"

namespace aft::server {

// The approximate cost of a step, in any unit of time: a part that does not depend on its tokens,
// and a part for each token.
struct StepCost {
  double fixed = 0;
  double token = 0;  // 0: tokens cost nothing, so that steps are never shared
};

// One client's part of a step.
struct ClientShare {
  double weight = 1;
  // The number of tokens that it could use: one for each stream that decodes, and for its prompts
  // as many as a step has room for. At least 1.
  int64_t tokens = 1;
  int64_t prompt_tokens = 0;  // the prompt tokens among these; for the caller
  size_t oldest = 0;          // lower: one of its sequences has waited longer for a row
  int64_t in_step = 0;        // the result: the number of tokens that the client may have
  bool cut = false;           // `in_step` is less than it could use

  double load() const { return static_cast<double>(tokens) / weight; }
};

// Shares a step among clients. "Shared steps" in README.md has the rule. ShareStep keeps the step
// below a multiple of the time of a step with the smallest client's tokens alone. A longer `target`
// replaces that limit. If `small`, no client has more tokens for its weight than the smallest
// client, so the difference from other steps shows the cost of a token.
//
// Sets `in_step` and `cut` of all clients and changes their order. Returns whether any client is
// cut.
bool ShareStep(const StepCost& cost, double target, bool small, std::vector<ClientShare>& clients);

// Learns the cost of steps in which sequences decode. A prompt token may cost more or less than a
// decoded one: the learnt cost is that of the tokens that steps have. Thread-compatible.
class StepCostMeter {
 public:
  // A step with this number of tokens has taken `time`, and was worked on for `work` of it. On a
  // busy machine a step also waits for a core, however few tokens it has, so the cost of a token is
  // learnt from `work` alone. `small`: as in ShareStep.
  void Observe(bool small, int64_t tokens, Duration work, Duration time);

  // In seconds of `time`, once a step was observed. kUnknownRatio is assumed until small steps were
  // observed.
  StepCost cost() const;

 private:
  // The fixed part of a step's cost, as a multiple of the cost of a token.
  static constexpr double kUnknownRatio = 16;
  // The assumed ratio has the weight of a difference of this many tokens between small steps and
  // others. Where these hardly differ, the measured difference is noise.
  static constexpr double kAssumedTokens = 0.5;
  // The weight of all past steps of a kind after each new one: about five steps count.
  static constexpr double kKeep = 0.8;
  // A step that takes longer than this many times the expected time was held up by something else.
  static constexpr double kHeldUp = 2;

  struct Mean {
    double tokens = 0;  // 0: none was seen
    double seconds = 0;
    void Add(double step_tokens, double step_seconds);
  };

  Mean small_;  // `work` of small steps
  Mean full_;   // `work` of the others
  Mean time_;   // `time` of the others
  double ratio_ = kUnknownRatio;
};

}  // namespace aft::server
