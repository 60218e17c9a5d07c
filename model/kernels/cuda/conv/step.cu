#include "model/kernels/cuda/conv/conv.h"
#include "model/kernels/cuda/conv/step_kernel.cuh"

namespace aft::kernels::cuda {
namespace {

constexpr int kLanes = 32;  // lanes of a block, unless its heads are wider
constexpr int kGroups = 4;  // fewest groups of lanes; they share the ring's rows
constexpr int kMostLanes = kConvStepThreads / kGroups;
constexpr int kThreads = 128;                 // fewest threads of a block
constexpr size_t kShared = size_t{48} << 10;  // most bytes of a block, so that four blocks fit

template <typename Ring, typename Y, int kVec>
int Start(ConvStepArgs& args, Stream stream) {
  const ConvDims& dims = args.dims;
  // The heads of a block are as many as its lanes cover, and make a whole number of vectors. There
  // are fewer of them if their weights would take too much memory.
  int unit = 1;  // number of heads that make whole vectors
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
  return Launch(ConvStepKernel<Ring, Y, kVec>, dim3(blocks, static_cast<unsigned>(args.rows.rows)),
                static_cast<unsigned>(threads), bytes, stream, args);
}

template <typename Ring, typename Y>
int Start(ConvStepArgs& args, Stream stream) {
  constexpr auto kVec = static_cast<int>(16 / sizeof(Ring));
  const ConvDims& dims = args.dims;
  args.packed_aligned = Aligned16<float>(args.packed.data, args.packed.stride, 0) &&
                        Aligned16<float>(args.packed.data, dims.hid, dims.values());
  args.state_aligned = Aligned16<float>(args.state.base, args.state.slot_stride, dims.hid);
  args.y_aligned = Aligned16<Y>(args.y.data, args.y.stride, dims.hid);
  // Rows of the ring start at the boundary of a vector, and so do all channels that begin a vector.
  const bool vectors = Aligned16<float>(args.state.base, args.state.slot_stride, args.v_ring) &&
                       dims.hid % kVec == 0;
  if (vectors) return Start<Ring, Y, kVec>(args, stream);
  args.packed_aligned = args.state_aligned = args.y_aligned = true;  // always so for single numbers
  return Start<Ring, Y, 1>(args, stream);
}

}  // namespace

int ConvStep(const ConvModel& model, const StepRows& rows, In packed, State state, Out y,
             Stream stream) {
  if (!IsValid(model) || !model.causal) return cudaErrorInvalidValue;
  const ConvStateLayout layout = model.layout();
  ConvStepArgs args = {ConvDims(model), rows, packed, state, layout.KRing(), layout.VRing(), y};
  return ForOutput(packed.type, y.type, [&](auto out) {
    using Y = decltype(out);
    return model.ring == Number::kBf16 ? Start<Bf16, Y>(args, stream)
                                       : Start<float, Y>(args, stream);
  });
}

}  // namespace aft::kernels::cuda
