#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "model/kernels/cuda/attention/attention.h"
#include "model/kernels/cuda/attention/mma_kernel.cuh"
#include "model/kernels/cuda/attention/scalar_kernel.cuh"
#include "model/kernels/cuda/attention/store_kernel.cuh"

namespace aft::kernels::cuda {
namespace {

template <bool kAdditive>
cudaError_t LaunchScalar(const AttendArgs& args, Stream stream) {
  SharedLayout shared;
  const ScalarShared layout(shared);
  const unsigned chunks = Blocks(args.shape.value_width, kScalarColumns);
  return Launch(
      AttentionScalarKernel<kAdditive>,
      dim3(static_cast<unsigned>(TilesBefore(kScalarQueries, args.rows.rows, args.rows.tokens)),
           static_cast<unsigned>(args.shape.heads) * chunks),
      dim3(kScalarWarps * 32), shared.bytes(), stream, args);
}

constexpr int kMmaWidth = 128;

template <int kWidth>
cudaError_t LaunchMma(const AttendArgs& args, Stream stream) {
  SharedLayout shared;
  const MmaShared<kWidth> layout(shared);
  if (shared.bytes() > SharedLimit()) return LaunchScalar<false>(args, stream);
  return Launch(
      AttentionMmaKernel<kWidth>,
      dim3(static_cast<unsigned>(TilesBefore(kMmaQueries, args.rows.rows, args.rows.tokens)),
           static_cast<unsigned>(args.shape.heads)),
      dim3(kMmaThreads), shared.bytes(), stream, args);
}

cudaError_t LaunchAttend(const AttendArgs& args, Stream stream) {
  if (args.shape.score == Score::kAdditive) return LaunchScalar<true>(args, stream);
  const int width = std::max(args.shape.score_width, args.shape.value_width);
  if (args.shape.position_keys != nullptr || width > kMmaWidth) {
    return LaunchScalar<false>(args, stream);
  }
  if (width <= 32) return LaunchMma<32>(args, stream);
  if (width <= 64) return LaunchMma<64>(args, stream);
  return LaunchMma<128>(args, stream);
}

cudaError_t LaunchStore(const AttendArgs& args, Stream stream) {
  SharedLayout shared;
  shared.Take<float>(32 * 33);
  return Launch(
      AttentionStoreKernel,
      dim3(static_cast<unsigned>(TilesBefore(kStoreTokens, args.rows.rows, args.rows.tokens)),
           static_cast<unsigned>(args.shape.heads)),
      dim3(kStoreWarps * 32), shared.bytes(), stream, args);
}

bool In16Bytes(const void* data, std::initializer_list<int64_t> counts) {
  bool multiples = Aligned(data, 16);
  for (const int64_t count : counts) multiples = multiples && count % 4 == 0;
  return multiples;
}

void SetAlignment(AttendArgs& args) {
  const AttentionShape& shape = args.shape;
  args.packed_in_16_bytes =
      shape.score != Score::kCosine &&
      In16Bytes(args.packed.data, {args.packed.stride, shape.score_width, shape.value_width});
  args.state_in_16_bytes = In16Bytes(args.state.base, {args.state.slot_stride, shape.first_value,
                                                       shape.values, shape.value_width});
  args.y_in_pairs = Aligned(args.y.data, 8) && args.y.stride % 2 == 0 && shape.value_width % 2 == 0;
}

// Computes the attention of args' rows. With kCosine their factors come first, in the workspace.
cudaError_t Attend(AttendArgs args, float* workspace, Stream stream) {
  const int64_t tokens = args.rows.tokens;
  SetAlignment(args);
  if (args.shape.score == Score::kCosine) {
    args.factors = workspace;
    const int64_t warps = tokens * args.shape.heads;
    const cudaError_t error =
        Launch(AttentionFactorsKernel, dim3(Blocks(warps, kStoreWarps)), dim3(kStoreWarps * 32), 0,
               stream, args.shape, args.packed, tokens, workspace);
    if (error != cudaSuccess) return error;
  }
  const cudaError_t error = LaunchAttend(args, stream);
  if (error != cudaSuccess || args.state.base == nullptr) return error;
  return LaunchStore(args, stream);
}

}  // namespace

int64_t AttentionWorkspaceFloats(const AttentionParams& params, int64_t tokens) {
  return params.score == Score::kCosine ? tokens * params.heads * 2 : 0;
}

int AttentionPrefill(const AttentionParams& params, const ChunkRows& chunks, In packed, State state,
                     Out y, float* workspace, Stream stream) {
  if (!params.causal || !Supported(params, packed, y)) return cudaErrorInvalidValue;
  if (chunks.tokens == 0) return cudaSuccess;
  AttendArgs args = {};
  args.shape = MakeShape(params);
  args.packed = packed;
  args.y = y;
  args.state = state;
  args.rows = chunks;
  return Attend(args, workspace, stream);
}

int AttentionEncode(const AttentionParams& params, const Texts& texts, In packed, Out y,
                    float* workspace, Stream stream) {
  if (!Supported(params, packed, y)) return cudaErrorInvalidValue;
  if (texts.tokens == 0) return cudaSuccess;
  AttendArgs args = {};
  args.shape = MakeShape(params);
  args.packed = packed;
  args.y = y;
  args.rows = texts.rows();
  args.mask = texts.mask;
  return Attend(args, workspace, stream);
}

}  // namespace aft::kernels::cuda
