#include "model/kernels/cuda/aft.h"
#include "model/kernels/cuda/aft_step_kernel.cuh"

namespace aft::kernels::cuda {
namespace {

constexpr int kWidth = 4;  // channels of a thread; 1 where they cannot be read together
constexpr int kThreadsNoRing = 128;

// Warps that sum a ring, by the window alone: the order of a sum must not depend on the batch.
int Summers(int64_t ring_rows) {
  int summers = 1;
  while (summers < kMaxSummers && summers * kGroup < ring_rows) summers *= 2;
  return summers;
}

template <typename T>
bool Aligned(const T* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

// Whether kWidth channels can be read and written at once everywhere.
bool FourWide(const StepTask& task) {
  return task.hid % kWidth == 0 && task.qkv.stride % kWidth == 0 && task.y.stride % kWidth == 0 &&
         task.state.slot_stride % kWidth == 0 && Aligned(task.state.base, 16) &&
         Aligned(task.qkv.data, kWidth * NumberBytes(task.qkv.type)) &&
         Aligned(task.y.data, kWidth * NumberBytes(task.y.type));
}

template <typename RingT, int N>
cudaError_t LaunchStep(const StepTask& task, cudaStream_t stream) {
  const int64_t threads = (task.hid + N - 1) / N;
  dim3 block(kLanes, 1);
  SharedLayout shared;
  if constexpr (std::is_same_v<RingT, NoRing>) {
    while (block.x < kThreadsNoRing && block.x < threads) block.x *= 2;
  } else {
    const int summers = Summers(task.ring_rows);
    block.y = static_cast<unsigned>(1 + summers);
    StepParts(shared, summers, N);
  }
  const dim3 grid(static_cast<unsigned>((threads + block.x - 1) / block.x),
                  static_cast<unsigned>(task.rows.rows));
  return Launch(AftStepKernel<RingT, N>, grid, block, shared.bytes(), stream, task);
}

template <int N>
cudaError_t LaunchStep(const StepTask& task, AftRing ring, cudaStream_t stream) {
  if (task.ring_rows == 0) return LaunchStep<NoRing, N>(task, stream);
  return ring == AftRing::kBf16 ? LaunchStep<Bf16, N>(task, stream)
                                : LaunchStep<float, N>(task, stream);
}

}  // namespace

int64_t AftLookaheadFloats(const AftModel& /*model*/, int64_t /*rows*/) { return 0; }
int64_t AftLookaheadRows(const AftModel& /*model*/) { return 0; }

int AftStep(const AftModel& model, const StepRows& rows, In qkv, State state,
            const AftLookahead& lookahead, Out y, Stream stream) {
  if (!model.causal || model.hid <= 0 || model.window < 0 || lookahead.rows != 0) {
    return cudaErrorInvalidValue;
  }
  const AftStateLayout layout = model.layout();
  StepTask task;
  task.rows = rows;
  task.qkv = qkv;
  task.state = state;
  task.y = y;
  task.hid = model.hid;
  task.prefix_block = model.prefix_block;
  task.bias = model.window > 0 ? model.bias : nullptr;
  task.bias_rows = model.bias_rows;
  task.ring_rows = static_cast<int>(layout.ring_rows());
  task.k_ring = layout.KRing();
  task.v_ring = layout.VRing();
  return FourWide(task) ? LaunchStep<kWidth>(task, model.ring, stream)
                        : LaunchStep<1>(task, model.ring, stream);
}

}  // namespace aft::kernels::cuda
