#pragma once

#include <cstdint>
#include <vector>

#include "model/gpu/gpu_mixer.h"
#include "model/gpu/gpu_step.h"

namespace aft {

// The shapes that steps are padded to, so that few recorded graphs serve them: queueing a step
// operator by operator takes the host several times as long as the device needs for it.
class GpuStepShapes {
 public:
  GpuStepShapes(int32_t slots, int64_t max_step_tokens);

  // By tokens, ascending. First steps of single tokens, the last with all slots; then steps with
  // chunks, whose last chunk is padding's.
  const std::vector<GpuStepShape>& all() const { return shapes_; }

  // Of all(), the one with the fewest tokens that takes a step of this shape; -1: none does. Left
  // out are steps with far more outputs than rows (texts to score) and of many short chunks.
  int64_t IndexFor(const GpuStepShape& step) const;

  // What a network must be made for: all of them, and any step within slots and max_step_tokens.
  const GpuLimits& limits() const { return limits_; }

 private:
  void AddDecode(int64_t slots);
  void AddWithChunks(int64_t slots, int64_t max_step_tokens);

  std::vector<GpuStepShape> shapes_;
  GpuLimits limits_;
};

}  // namespace aft
