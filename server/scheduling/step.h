#pragma once

#include <cstdint>
#include <vector>

#include "model/api/model_runner.h"

namespace aft::server {

class Sequence;

// One planned step.
struct Step {
  StepInput input;
  // sequences[i] owns input.rows[i]; null once it is removed: the row's result is dropped.
  std::vector<Sequence*> sequences;
  int64_t prompt_tokens = 0;  // of all rows
  int64_t tokens = 0;
  bool small = false;   // as of ShareStep; for StepCostMeter
  bool shared = false;  // a client has less of it than it could use

  bool empty() const { return sequences.empty(); }
  int64_t decodes() const { return tokens - prompt_tokens; }
};

}  // namespace aft::server
