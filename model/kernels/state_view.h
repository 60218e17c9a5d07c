#pragma once

#include <cstdint>

namespace aft {

// What one part of a network (a layer's mixer) keeps of every sequence, on the model's device: that
// of slot i starts at base + i * slot_stride, 64-byte aligned. The same bytes on every device.
struct StateView {
  float* base = nullptr;
  int64_t slot_stride = 0;  // floats
  // StateSpec::scratch_floats of each slot, in the same way; null: do without.
  float* scratch = nullptr;
  int64_t scratch_stride = 0;
};

}  // namespace aft
