#pragma once

#include <cstdint>

#include "model/config/config.h"

namespace aft {

// The exact number of bytes that CpuNetwork allocates for a network's packed weights. The tables of
// its mixers are not included (Mixer::table_bytes).
struct WeightBytes {
  int64_t products = 0;  // read by every step: matrices and norms
  int64_t lookups = 0;   // one row read per token: positions, and an embedding that is not the head

  int64_t total() const { return products + lookups; }
};

// Matrices in `format`, one that the CPU has.
WeightBytes CountWeightBytes(const NetworkConfig& config, Number format);

// The bytes of the tables of all mixers: those of AFT as they are folded, and others as they are in
// the file, which is about the size that they have in memory.
int64_t CountTableBytes(const NetworkConfig& config);

// The most bytes of tensors that CpuNetwork has in memory while it packs them: in fp32 those of a
// layer, of the head or of the embedding.
int64_t CountReadBytes(const NetworkConfig& config);

}  // namespace aft
