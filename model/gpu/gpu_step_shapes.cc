#include "model/gpu/gpu_step_shapes.h"

#include <algorithm>

#include "model/kernels/cuda/types.h"

namespace aft {
namespace {

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Returns `first`, its doubles below `last`, and `last`.
std::vector<int64_t> Doubling(int64_t first, int64_t last) {
  std::vector<int64_t> sizes;
  for (int64_t size = first; size < last; size *= 2) sizes.push_back(size);
  sizes.push_back(last);
  return sizes;
}

// The number of chunks of a step with this number of tokens in chunks. There is room for many
// prompts, but kernels should not have to look at many rows that are hardly ever used.
int64_t ChunksFor(int64_t tokens, int64_t slots) {
  constexpr int64_t kShort = 16;  // tokens
  constexpr int64_t kLong = 64;
  constexpr int64_t kFew = 4;  // chunks
  constexpr int64_t kMany = 64;
  const int64_t chunks = std::max({kFew, std::min(tokens / kShort, kMany), tokens / kLong});
  return std::min({chunks, slots, kernels::cuda::kMaxRows - 1});
}

bool Fits(const GpuStepShape& step, const GpuStepShape& shape) {
  if (shape.decode < step.decode || shape.outputs < step.outputs) return false;
  if (step.chunks == 0) return shape.chunks == 0;
  return shape.chunks > step.chunks && shape.chunk_tokens() >= step.chunk_tokens();
}

}  // namespace

GpuStepShapes::GpuStepShapes(int32_t slots, int64_t max_step_tokens)
    : limits_({.rows = slots, .tokens = max_step_tokens, .slots = slots}) {
  AddDecode(slots);
  AddWithChunks(slots, max_step_tokens);
  for (const GpuStepShape& shape : shapes_) {
    limits_.rows = std::max(limits_.rows, shape.chunks);
    limits_.tokens = std::max(limits_.tokens, shape.tokens);
  }
}

// Rows double up to 64, and then there are at most about 32 more shapes. Padding costs little
// compared with a graph's memory.
void GpuStepShapes::AddDecode(int64_t slots) {
  const int64_t stride = RoundUp(std::max<int64_t>(slots / 32, 1), 64);
  for (int64_t rows = 1; rows < slots; rows = rows < 64 ? 2 * rows : RoundUp(rows + 1, stride)) {
    shapes_.push_back(GpuStepShape::Decode(rows));
  }
  shapes_.push_back(GpuStepShape::Decode(slots));
}

// The shapes with chunks are coarser than those without, because some hundred rows of a product
// cost less than reading the weights.
void GpuStepShapes::AddWithChunks(int64_t slots, int64_t max_step_tokens) {
  if (max_step_tokens < 2) return;  // a chunk has two tokens or more
  constexpr int64_t kFirst = 32;
  std::vector<int64_t> decode = {0};
  if (slots > 1) {  // a chunk has one of the slots
    const std::vector<int64_t> sizes = Doubling(kFirst, slots - 1);
    decode.insert(decode.end(), sizes.begin(), sizes.end());
  }
  const std::vector<int64_t> tokens = Doubling(kFirst, max_step_tokens);
  std::vector<GpuStepShape> shapes;
  for (size_t d = 0; d < decode.size(); ++d) {
    for (size_t t = 0; t < tokens.size(); ++t) {
      // The smallest step that fits into no smaller shape.
      const int64_t least = (d == 0 ? 0 : decode[d - 1] + 1) + (t == 0 ? 2 : tokens[t - 1] + 1);
      if (least > max_step_tokens) continue;
      const int64_t chunks = ChunksFor(tokens[t], slots);
      shapes.push_back({.decode = decode[d],
                        .chunks = chunks + 1,
                        .tokens = decode[d] + tokens[t],
                        .outputs = decode[d] + chunks});
    }
  }
  std::stable_sort(shapes.begin(), shapes.end(), [](const GpuStepShape& a, const GpuStepShape& b) {
    return a.tokens < b.tokens;
  });
  shapes_.insert(shapes_.end(), shapes.begin(), shapes.end());
}

int64_t GpuStepShapes::IndexFor(const GpuStepShape& step) const {
  const auto found = std::find_if(shapes_.begin(), shapes_.end(),
                                  [&step](const GpuStepShape& one) { return Fits(step, one); });
  return found == shapes_.end() ? -1 : found - shapes_.begin();
}

}  // namespace aft
