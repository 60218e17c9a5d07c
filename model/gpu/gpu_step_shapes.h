#pragma once

#include <cstdint>
#include <vector>

#include "model/gpu/gpu_mixer.h"
#include "model/gpu/gpu_step.h"

namespace aft {

// The shapes that steps are padded to, so that few recorded graphs serve them. Without graphs,
// queueing a step operator by operator takes the host several times as long as the device.
class GpuStepShapes {
 public:
  GpuStepShapes(int32_t slots, int64_t max_step_tokens);

  // All shapes by tokens, ascending: first steps of single tokens, the last of them with all slots;
  // then steps with chunks, whose last chunk is for padding.
  const std::vector<GpuStepShape>& all() const { return shapes_; }

  // The index in all() of the shape with the fewest tokens that a step of this shape fits into, or
  // -1 if there is none. There is none for steps with far more outputs than rows (texts to score)
  // and for many short chunks.
  int64_t IndexFor(const GpuStepShape& step) const;

  // The limits that a network must be made for: they include all shapes, and any step within slots
  // and max_step_tokens.
  const GpuLimits& limits() const { return limits_; }

 private:
  void AddDecode(int64_t slots);
  void AddWithChunks(int64_t slots, int64_t max_step_tokens);

  std::vector<GpuStepShape> shapes_;
  GpuLimits limits_;
};

}  // namespace aft
