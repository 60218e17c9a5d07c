#include <algorithm>
#include <cstdint>

#include "model/kernels/cuda/attention/attention.h"
#include "model/kernels/cuda/attention/step_kernel.cuh"

namespace aft::kernels::cuda {
namespace {

// The largest number of key blocks that a row may see.
int64_t MostBlocks(const AttentionParams& params) {
  const AttentionStateLayout layout(params);
  return layout.spans() * (RoundUpToKeyBlock(layout.span()) / kKeyBlock);
}

// Four waves of three blocks on each of an H100's 132 SMs.
constexpr int64_t kEnoughBlocks = 1584;

int64_t Splits(const AttentionParams& params) {
  return std::max<int64_t>(1, (MostBlocks(params) + kSplitBlocks - 1) / kSplitBlocks);
}

bool ReadsVectors(const AttentionParams& params, const State& state) {
  const AttentionStateLayout layout(params);
  return params.value_width % 4 == 0 && layout.Keys() % 4 == 0 && layout.Values() % 4 == 0 &&
         state.slot_stride % 4 == 0 && Aligned(state.base, 16) && Aligned(params.position_keys, 16);
}

template <int kVector, int kGroups, bool kAdditive>
cudaError_t LaunchStep(AttentionStepArgs args, int warps, Stream stream) {
  constexpr int kColumns = 32 * kVector * kGroups;
  args.column_chunks = static_cast<int>(Blocks(args.shape.value_width, kColumns));
  // Splits serve to fill the GPU. With many rows a block takes several of them in turn, so that a
  // large capacity costs short contexts nothing. A split's result does not depend on its block.
  const int64_t units = args.rows.rows * args.shape.heads * args.column_chunks;
  args.split_blocks =
      static_cast<int>(std::clamp<int64_t>((kEnoughBlocks + units - 1) / units, 1, args.splits));
  const int64_t blocks = units * args.split_blocks;
  SharedLayout shared;
  const StepShared layout(shared, args.shape.score_width, kColumns, warps);
  if (blocks > INT32_MAX || shared.bytes() > (size_t{128} << 10)) return cudaErrorInvalidValue;
  return Launch(AttentionStepKernel<kVector, kGroups, kAdditive>,
                dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(warps) * 32),
                shared.bytes(), stream, args);
}

template <int kVector, bool kAdditive>
cudaError_t LaunchStepForWidth(const AttentionStepArgs& args, int warps, Stream stream) {
  if (args.shape.value_width <= 32 * kVector) {
    return LaunchStep<kVector, 1, kAdditive>(args, warps, stream);
  }
  return LaunchStep<kVector, 4, kAdditive>(args, warps, stream);
}

}  // namespace

int64_t AttentionStepWorkspaceFloats(const AttentionParams& params, int64_t rows) {
  const int64_t splits = Splits(params);
  return splits == 1 ? 0 : rows * params.heads * splits * (params.value_width + 2);
}

int AttentionStep(const AttentionParams& params, const StepRows& rows, In packed, State state,
                  Out y, float* workspace, Stream stream) {
  if (!params.causal || !Supported(params, packed, y)) return cudaErrorInvalidValue;
  if (rows.rows == 0) return cudaSuccess;
  AttentionStepArgs args = {};
  args.shape = MakeShape(params);
  args.rows = rows;
  args.packed = packed;
  args.state = state;
  args.y = y;
  args.partial = workspace;
  args.splits = static_cast<int>(Splits(params));
  // There are no more warps than key blocks, so that short contexts leave room for other blocks.
  const int warps = static_cast<int>(std::clamp<int64_t>(MostBlocks(params), 1, kStepWarps));
  const bool additive = params.score == Score::kAdditive;
  cudaError_t error = cudaSuccess;
  if (ReadsVectors(params, state)) {
    error = additive ? LaunchStepForWidth<4, true>(args, warps, stream)
                     : LaunchStepForWidth<4, false>(args, warps, stream);
  } else {
    error = additive ? LaunchStepForWidth<1, true>(args, warps, stream)
                     : LaunchStepForWidth<1, false>(args, warps, stream);
  }
  if (error != cudaSuccess || args.splits == 1) return error;
  const int64_t threads = std::min<int64_t>(256, (params.value_width + 31) / 32 * 32);
  return Launch(AttentionCombineKernel, dim3(static_cast<unsigned>(rows.rows * params.heads)),
                dim3(static_cast<unsigned>(threads)), 0, stream, args);
}

}  // namespace aft::kernels::cuda
