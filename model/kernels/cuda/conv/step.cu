#include "model/kernels/cuda/conv/conv.h"
#include "model/kernels/cuda/conv/step_kernel.cuh"

namespace aft::kernels::cuda {
namespace {

constexpr int kLanes = 32;  // for heads that are not wider than that
constexpr int kGroups = 4;  // of lanes, at least: they share the ring's rows
constexpr int kMostLanes = kConvStepThreads / kGroups;
constexpr int kThreads = 128;                 // at least
constexpr size_t kShared = size_t{48} << 10;  // what a block should not exceed, so that four fit

template <typename T, typename Ring, typename Y, int kVec>
int Start(ConvStepArgs& args, Stream stream) {
  const ConvDims& dims = args.dims;
  // Heads of a block: what the lanes cover, a whole number of vectors; fewer where the weights
  // would take too much.
  int unit = 1;  // heads that make whole vectors
  while (unit * dims.width % kVec != 0) unit *= 2;
  int threads = 0;
  const auto shape = [&](int heads) {
    args.heads = heads < dims.heads ? heads : dims.heads;
    args.lanes = 1;
    while (args.lanes < kMostLanes && args.lanes * kVec < args.heads * dims.width) args.lanes *= 2;
    threads = args.lanes * kGroups > kThreads ? args.lanes * kGroups : kThreads;
    SharedLayout layout;
    const ConvStepShared shared(layout, args, threads, kVec);
    return layout.bytes();
  };
  int units = kLanes * kVec / (dims.width * unit);
  if (units < 1) units = 1;
  size_t bytes = shape(units * unit);
  while (bytes > kShared && units > 1) {
    units /= 2;
    bytes = shape(units * unit);
  }
  const auto blocks = Blocks(dims.heads, args.heads);
  return Launch(ConvStepKernel<T, Ring, Y, kVec>,
                dim3(blocks, static_cast<unsigned>(args.rows.rows)), static_cast<unsigned>(threads),
                bytes, stream, args);
}

template <typename T, typename Ring, typename Y>
int Start(ConvStepArgs& args, Stream stream) {
  constexpr auto kVec = static_cast<int>(16 / sizeof(Ring));
  const ConvDims& dims = args.dims;
  args.packed_aligned = Aligned16<T>(args.packed.data, args.packed.stride, 0) &&
                        Aligned16<T>(args.packed.data, dims.hid, dims.values());
  args.state_aligned = Aligned16<float>(args.state.base, args.state.slot_stride, dims.hid);
  args.y_aligned = Aligned16<Y>(args.y.data, args.y.stride, dims.hid);
  // A row of the ring starts at a vector's boundary, and so do all channels that begin a vector.
  const bool vectors = Aligned16<float>(args.state.base, args.state.slot_stride, args.v_ring) &&
                       dims.hid % kVec == 0;
  if (vectors) return Start<T, Ring, Y, kVec>(args, stream);
  args.packed_aligned = args.state_aligned = args.y_aligned = true;  // single numbers always are
  return Start<T, Ring, Y, 1>(args, stream);
}

}  // namespace

int ConvStep(const ConvModel& model, const StepRows& rows, In packed, State state, Out y,
             Stream stream) {
  if (!IsValid(model) || !model.causal) return cudaErrorInvalidValue;
  const ConvStateLayout layout = model.layout();
  ConvStepArgs args = {ConvDims(model), rows, packed, state, layout.KRing(), layout.VRing(), y};
  return ForTypes(packed.type, y.type, [&](auto in, auto out) {
    using T = decltype(in);
    using Y = decltype(out);
    return model.ring == Number::kBf16 ? Start<T, Bf16, Y>(args, stream)
                                       : Start<T, float, Y>(args, stream);
  });
}

}  // namespace aft::kernels::cuda
