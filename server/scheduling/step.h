#pragma once

#include <cstdint>
#include <vector>

#include "model/api/model_runner.h"

namespace aft::server {

class Sequence;

// One planned step.
struct Step {
  StepInput input;
  // sequences[i] owns input.rows[i]. It is null once the sequence is removed; the result of the row
  // is then dropped.
  std::vector<Sequence*> sequences;
  int64_t prompt_tokens = 0;  // of all rows
  int64_t tokens = 0;
  bool small = false;   // the argument of ShareStep and of StepCostMeter::Observe
  bool shared = false;  // a client has less of it than it could use

  int64_t decodes() const { return tokens - prompt_tokens; }
};

}  // namespace aft::server
