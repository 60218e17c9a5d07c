#pragma once

#include <cstdint>

namespace aft {

// The memory in which one part of a network (a layer's mixer) keeps its state of every sequence, on
// the model's device. The state of slot i starts at base + i * slot_stride, 64-byte aligned. Its
// bytes are the same on every device.
struct StateView {
  float* base = nullptr;
  int64_t slot_stride = 0;  // floats
  // Scratch of each slot, StateSpec::scratch_floats long, at scratch + i * scratch_stride. It may
  // be null; the mixer then works without scratch.
  float* scratch = nullptr;
  int64_t scratch_stride = 0;
};

}  // namespace aft
