#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/scheduling/time.h"

namespace aft::server {

// What a step takes, about, in any unit of time: a part that does not depend on its rows, and a
// part for each row.
struct StepCost {
  double fixed = 0;
  double row = 0;  // 0: rows cost nothing, so that no stream ever sits out
};

// One client's part of a step.
struct ClientShare {
  double weight = 1;
  int64_t rows = 1;     // of its live sequences, at least 1
  uint64_t oldest = 0;  // the lower, the longer has one of them waited for a row
  size_t begin = 0;     // for the caller: where its sequences begin
  int64_t in_step = 0;  // the rows that the step may have: the result

  double load() const { return static_cast<double>(rows) / weight; }
};

// Shares a step among clients. The smallest client is the one with the fewest rows for its weight,
// and its slowdown is the length of the step over that of a step with its rows alone. A step that
// all clients share by their weights in time slows it down by the sum of all weights over its own:
// twice, of two equal clients. ShareStep keeps the step below one more than that, or to `target`
// when that is longer: clients get rows by their weights, at least one each, and what a client does
// not need goes to the others. So a client with no more than its share has all of its rows in every
// step. Nothing is cut when all clients have the same number of rows for their weights.
//
// `small`: instead, no client has more rows for its weight than the smallest, so that the
// difference to other steps shows what a row costs.
//
// Sets `in_step` of all and changes their order. Returns whether a client has fewer than its rows.
bool ShareStep(const StepCost& cost, double target, bool small, std::vector<ClientShare>& clients);

// Learns what steps of decodes cost. Thread-compatible.
class StepCostMeter {
 public:
  // A step of so many decode rows and no prompt has taken `time`, of which it was worked on for
  // `work`. On a machine that others want too a step also waits for a core, however few rows it
  // has, so what a row costs is learnt from the work alone. `small`: as of ShareStep.
  void Observe(bool small, int64_t rows, Duration work, Duration time);

  // In seconds of `time`, once a step was observed. Until small steps were, kUnknownRatio is
  // assumed.
  StepCost cost() const;

 private:
  // The fixed part of a step over that of a row.
  static constexpr double kUnknownRatio = 16;
  // It counts as much as a difference of so many rows between small steps and others: where they
  // hardly differ, what was measured is noise.
  static constexpr double kAssumedRows = 0.5;
  // Of what was seen before, after each step of its kind: some five steps count.
  static constexpr double kKeep = 0.8;
  // A step that takes longer than this many times what was expected was held up by something else.
  static constexpr double kHeldUp = 2;

  struct Mean {
    double rows = 0;  // 0: none was seen
    double seconds = 0;
    void Add(double step_rows, double step_seconds);
  };

  Mean small_;  // of the work
  Mean full_;   // likewise
  Mean time_;   // of steps that are not small
  double ratio_ = kUnknownRatio;
};

}  // namespace aft::server
