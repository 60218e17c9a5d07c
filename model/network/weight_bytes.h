#pragma once

#include <cstdint>

#include "model/config/config.h"

namespace aft {

// What a network's packed weights take on the CPU, to the byte: CpuNetwork allocates as many. The
// tables of its mixers are their own (Mixer::table_bytes).
struct WeightBytes {
  int64_t products = 0;  // read by every step: matrices and norms
  int64_t lookups = 0;   // a row for each token: positions, and an embedding that is not the head's

  int64_t total() const { return products + lookups; }
};

// Matrices in `format`, one that the CPU has.
WeightBytes CountWeightBytes(const NetworkConfig& config, Number format);

}  // namespace aft
