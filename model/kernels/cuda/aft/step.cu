#include <algorithm>
#include <limits>

#include "model/kernels/cuda/aft/aft.h"
#include "model/kernels/cuda/aft/lookahead_kernel.cuh"
#include "model/kernels/cuda/aft/step_kernel.cuh"

namespace aft::kernels::cuda {
namespace aft_step {
namespace {

constexpr int kThreadsNoRing = 128;
constexpr int64_t kMostRows = 16;   // look-ahead rows, limited by shared memory
constexpr int64_t kLongRing = 127;  // from here on most of the work is a pass through the ring

// The number of warps that sum a ring. It depends on the window alone, as the order of a sum must
// not depend on the batch.
int Summers(int64_t ring_rows) {
  return static_cast<int>(std::min<int64_t>(Blocks(ring_rows, kGroup), kMaxSummers));
}

// Whether kWidth channels can be read and written at once in all arrays.
bool FourWide(const StepTask& task) {
  return task.hid % kWidth == 0 && task.qkv.stride % kWidth == 0 && task.y.stride % kWidth == 0 &&
         task.state.slot_stride % kWidth == 0 && Aligned(task.state.base, 16) &&
         Aligned(task.qkv.data, kWidth * NumberBytes(task.qkv.type)) &&
         Aligned(task.y.data, kWidth * NumberBytes(task.y.type));
}

dim3 Grid(const StepTask& task, int width, unsigned lanes) {
  return {Blocks(task.hid, static_cast<int64_t>(width) * lanes),
          static_cast<unsigned>(task.rows.rows)};
}

template <typename RingT, int N>
cudaError_t LaunchStep(const StepTask& task, cudaStream_t stream) {
  dim3 block(kLanes, 1);
  SharedLayout shared;
  if constexpr (std::is_same_v<RingT, NoRing>) {
    while (block.x < kThreadsNoRing && block.x * N < static_cast<unsigned>(task.hid)) block.x *= 2;
  } else {
    const int summers = Summers(task.ring_rows);
    block.y = static_cast<unsigned>(1 + summers);
    StepParts(shared, summers, N);
  }
  return Launch(AftStepKernel<RingT, N>, Grid(task, N, block.x), block, shared.bytes(), stream,
                task);
}

template <typename RingT, bool kWide>
cudaError_t LaunchLookahead(const StepTask& task, const AftLookahead& lookahead,
                            cudaStream_t stream) {
  const auto shared_bytes = [&lookahead](int summers) {
    SharedLayout shared;
    LookaheadShared<kWide>(shared, summers, static_cast<int>(lookahead.rows));
    return shared.bytes();
  };
  int summers = task.ring_rows < kLongRing ? 2 : kMaxLookaheadSummers;
  // Where a block has 99 KiB, four summers of wide biases need more. The device decides, not the
  // batch, so a sum still has one order.
  while (summers > 1 && shared_bytes(summers) > SharedLimit()) --summers;
  return Launch(AftLookaheadKernel<RingT, kWide>, Grid(task, kWidth, kLanes),
                dim3(kLanes, static_cast<unsigned>(1 + summers)), shared_bytes(summers), stream,
                task, lookahead);
}

template <typename RingT>
cudaError_t LaunchAny(const StepTask& task, const AftLookahead& lookahead, bool wide,
                      cudaStream_t stream) {
  if constexpr (!std::is_same_v<RingT, NoRing>) {
    if (lookahead.rows > 0) {
      return wide ? LaunchLookahead<RingT, true>(task, lookahead, stream)
                  : LaunchLookahead<RingT, false>(task, lookahead, stream);
    }
  }
  return FourWide(task) ? LaunchStep<RingT, kWidth>(task, stream)
                        : LaunchStep<RingT, 1>(task, stream);
}

bool LookaheadPossible(const AftModel& model, const AftLookahead& lookahead, const StepTask& task) {
  return model.window > 1 && model.prefix_block == 0 && task.rows.age != nullptr &&
         lookahead.rows <= std::min(model.window, kMostRows) && FourWide(task) &&
         Aligned(lookahead.sums, 16) && lookahead.slot_stride % kWidth == 0;
}

}  // namespace
}  // namespace aft_step

int64_t AftLookaheadFloats(const AftModel& model, int64_t rows) {
  using aft_step::LookaheadSlot;
  if (rows == 0) return 0;
  return model.wide ? LookaheadSlot<true>::Row(rows, model.hid)
                    : LookaheadSlot<false>::Row(rows, model.hid);
}

// With a fp32 ring a step takes 8 n / R bytes per channel for the pass over n tokens, 16 for the
// sums and 4 (R - 1) for the tokens since then. With a bf16 ring the first and the last are half of
// that. The sum is flat around the best R. At R = 16 the 2 R multiply-adds of a token take as long
// as reading it, so more rows would not make a long ring cheaper. On an H100 look-ahead takes half
// the time of plain steps at a window of 256, and 1.6 times their time at 2,048.
int64_t AftLookaheadRows(const AftModel& model) {
  constexpr int64_t kShortest = 16;
  constexpr int64_t kLongest = 512;
  if (!model.causal || model.window < kShortest || model.window > kLongest ||
      model.prefix_block > 0 || model.hid % aft_step::kWidth != 0) {
    return 0;
  }
  return model.window <= aft_step::kLongRing ? 8 : aft_step::kMostRows;
}

int AftStep(const AftModel& model, const StepRows& rows, In qkv, State state,
            const AftLookahead& lookahead, Out y, Stream stream) {
  const AftStateLayout layout = model.layout();
  if (!AreMixerTypes(qkv.type, y.type) || !model.causal || model.hid <= 0 || model.window < 0 ||
      layout.Floats() > std::numeric_limits<int>::max()) {  // offsets in a layer's state are int
    return cudaErrorInvalidValue;
  }
  aft_step::StepTask task;
  task.rows = rows;
  task.qkv = qkv;
  task.state = state;
  task.y = y;
  task.hid = static_cast<int>(model.hid);
  task.prefix_block = model.prefix_block;
  task.bias = model.window > 0 ? model.bias : nullptr;
  task.bias_rows = model.bias_rows;
  task.ring_rows = static_cast<int>(layout.ring_rows());
  task.k_ring = layout.KRing();
  task.v_ring = layout.VRing();
  if (lookahead.rows > 0 && !aft_step::LookaheadPossible(model, lookahead, task)) {
    return cudaErrorInvalidValue;
  }
  if (task.ring_rows == 0) {
    return aft_step::LaunchAny<aft_step::NoRing>(task, lookahead, model.wide, stream);
  }
  return model.ring == Number::kBf16
             ? aft_step::LaunchAny<Bf16>(task, lookahead, model.wide, stream)
             : aft_step::LaunchAny<float>(task, lookahead, model.wide, stream);
}

}  // namespace aft::kernels::cuda
