#pragma once

#include "model/kernels/cuda/aft/aft.h"
#include "model/kernels/cuda/aft/step_kernel.cuh"

// The AFT step with block look-ahead (model/kernels/README.md). At age 0 the summers go through the
// ring once. They hold a group of tokens in registers and add it to the sums of each of the next R
// tokens. At age r the sums of row r replace the prefix and all of the ring except the r tokens
// since t0. A token that leaves the window between t0 and t0 + r is in the sums with bias 0, as it
// will be in the prefix.
//
// Narrow biases: all rows share exp(k - max k), and a row's weight is exp(w). Wide biases take an
// exponential for each row and token, relative to the row's largest.
//
// There is one launch for all ages: at any step only few rows go through their rings, and the
// others keep the memory busy.
namespace aft::kernels::cuda::aft_step {

inline constexpr int kTileChannels = kLanes * kWidth;
inline constexpr int kMaxLookaheadSummers = 4;

// A slot's sums, each of [hid] numbers: first the largest key; then for each row 1, 2, ... the
// numerator and denominator relative to that key, and for wide biases the bias part of the
// reference (Sums).
template <bool kWide>
struct LookaheadSlot {
  static constexpr int kKinds = kWide ? 3 : 2;
  __host__ __device__ static int64_t Row(int64_t r, int64_t hid) {
    return (1 + (r - 1) * kKinds) * hid;
  }
};

// The sums of the summers in shared memory. A summer's part begins with row 0 in the layout of
// StorePart, whose key is the reference of all rows. The other rows follow.
template <bool kWide>
class LookaheadShared {
 public:
  __host__ __device__ LookaheadShared(SharedLayout& shared, int summers, int rows)
      : rows_(rows),
        sums_(shared.Take<float>(summers * Kinds(rows) * kTileChannels)),
        weights_(shared.Take<float>(summers * rows * kGroup)) {}

  __device__ float* Part(int summer) const { return sums_ + summer * Kinds(rows_) * kTileChannels; }
  // Row r's numerators at this thread's channels; the denominators are kTileChannels further.
  __device__ float* Row(int summer, int r) const {
    return Part(summer) + (r == 0 ? 0 : Kinds(r)) * kTileChannels + threadIdx.x * kWidth;
  }
  __device__ float* Biases(int summer, int r) const {
    return Row(summer, r) + (r == 0 ? 3 : 2) * kTileChannels;
  }
  __device__ float* Keys(int summer) const { return Row(summer, 0) + 2 * kTileChannels; }
  // [rows][kGroup]: the weights of the current group, exp(w) when narrow and w when wide.
  __device__ float* Weights(int summer) const { return weights_ + summer * rows_ * kGroup; }

 private:
  __host__ __device__ static int Kinds(int rows) {
    return 4 + (rows - 1) * LookaheadSlot<kWide>::kKinds;
  }

  int rows_;
  float* sums_;
  float* weights_;
};

// One summer's share of the sums of rows t, t + 1, ... t + R - 1 over all tokens before t.
template <typename RingT, bool kWide>
class LookaheadSummer {
 public:
  using Thread = StepThread<RingT, kWidth>;
  using Shared = LookaheadShared<kWide>;

  __device__ LookaheadSummer(const Thread& thread, const Shared& shared, int rows, int summer,
                             int summers)
      : thread_(thread), shared_(shared), rows_(rows), summer_(summer), summers_(summers) {}

  // Adds up this summer's groups of the ring. The whole warp must call it.
  __device__ void SumRing(bool inside) const {
    Channels<kWidth> key = Fill<kWidth>(kEmptyMax);
    bool first = true;
    const int tokens = thread_.InRing();
    for (int age = tokens - summer_ * kGroup; age > 0; age -= summers_ * kGroup) {
      Group<kWidth> group = thread_.LoadGroup(age);
      __syncwarp();  // all have read the last group's weights
#pragma unroll 1     // registers are needed for the group in flight
      for (int i = static_cast<int>(threadIdx.x); i < rows_ * kGroup; i += kLanes) {
        const int j = i % kGroup;
        const float w = j < age ? thread_.LaterBias(i / kGroup, age - j) : kNoBias;
        shared_.Weights(summer_)[i] = kWide ? w : expf(w);
      }
      __syncwarp();
      if (inside) AddGroup(group, key, first);
      first = false;
    }
    if (inside && !first) {
      Store(key, shared_.Keys(summer_));
      if (!kWide) Store(Fill<kWidth>(0.0F), shared_.Biases(summer_, 0));
    }
  }

  // Combines all parts of this summer's share of the rows, except row 0, and stores the result in
  // the slot. A barrier must precede it.
  __device__ void StoreRows(const Sums<kWidth>& prefix, int parts, float* slot, int64_t hid) const {
    if constexpr (kWide) {
      for (int r = 1 + summer_; r < rows_; r += summers_) {
        Sums<kWidth> sums = prefix;
        for (int s = 0; s < parts; ++s) {
          const float* const row = shared_.Row(s, r);
          Merge(sums, {Load<kWidth>(row), Load<kWidth>(row + kTileChannels),
                       Load<kWidth>(shared_.Keys(s)), Load<kWidth>(shared_.Biases(s, r))});
        }
        float* const to = slot + LookaheadSlot<kWide>::Row(r, hid);
        StoreGlobal(sums.num, to);
        StoreGlobal(sums.den, to + hid);
        StoreGlobal(sums.bias, to + 2 * hid);
        if (r == 1) StoreGlobal(sums.key, slot);
      }
    } else {
      Channels<kWidth> key = prefix.key;
      for (int s = 0; s < parts; ++s) {
        const auto part_key = Load<kWidth>(shared_.Keys(s));
#pragma unroll
        for (int i = 0; i < kWidth; ++i) key[i] = fmaxf(key[i], part_key[i]);
      }
      for (int r = 1 + summer_; r < rows_; r += summers_) {
        Channels<kWidth> num = prefix.num;
        Channels<kWidth> den = prefix.den;
        Scale(prefix.key, key, num, den);
        for (int s = 0; s < parts; ++s) {
          auto part_num = Load<kWidth>(shared_.Row(s, r));
          auto part_den = Load<kWidth>(shared_.Row(s, r) + kTileChannels);
          Scale(Load<kWidth>(shared_.Keys(s)), key, part_num, part_den);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) {
            num[i] += part_num[i];
            den[i] += part_den[i];
          }
        }
        float* const to = slot + LookaheadSlot<kWide>::Row(r, hid);
        StoreGlobal(num, to);
        StoreGlobal(den, to + hid);
        if (r == 1) StoreGlobal(key, slot);
      }
    }
  }

 private:
  // Rescales sums from one reference to a larger one.
  __device__ static void Scale(const Channels<kWidth>& from, const Channels<kWidth>& to,
                               Channels<kWidth>& num, Channels<kWidth>& den) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float keep = Exp(from[i] - to[i]);
      num[i] *= keep;
      den[i] *= keep;
    }
  }

  // `first` says that there are no sums yet.
  __device__ void AddGroup(Group<kWidth>& group, Channels<kWidth>& key, bool first) const {
    const Channels<kWidth> old_key = TakeKeys(group, key);
    if constexpr (!kWide) {
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          group.k[j][i] = Exp(group.k[j][i]);
          group.v[j][i] *= group.k[j][i];
        }
      }
    }
    Channels<kWidth> keep;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) keep[i] = kWide ? 0.0F : Exp(old_key[i]);
#pragma unroll 1
    for (int r = 0; r < rows_; ++r) {
      const auto weights = Load<kGroup>(shared_.Weights(summer_) + r * kGroup);
      float* const row = shared_.Row(summer_, r);
      Channels<kWidth> num = Fill<kWidth>(0.0F);
      Channels<kWidth> den = Fill<kWidth>(0.0F);
      if (!first) {
        num = Load<kWidth>(row);
        den = Load<kWidth>(row + kTileChannels);
      }
      if constexpr (kWide) {
        Channels<kWidth> bias = Fill<kWidth>(0.0F);
        if (!first) bias = Load<kWidth>(shared_.Biases(summer_, r));
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          AddChannel(group, i, weights.x, old_key[i], num[i], den[i], bias[i]);
        }
        Store(bias, shared_.Biases(summer_, r));
      } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          num[i] *= keep[i];
          den[i] *= keep[i];
#pragma unroll
          for (int j = 0; j < kGroup; ++j) {
            num[i] += weights[j] * group.v[j][i];
            den[i] += weights[j] * group.k[j][i];
          }
        }
      }
      Store(num, row);
      Store(den, row + kTileChannels);
    }
  }

  const Thread& thread_;
  const Shared& shared_;
  const int rows_;
  const int summer_;
  const int summers_;
};

// Grid: channel tiles, rows. Block: kLanes, 1 + summers. REQUIRES: no prefix blocks; R <= s.
template <typename RingT, bool kWide>
__global__ void __launch_bounds__(kLanes*(1 + kMaxLookaheadSummers), kWide ? 2 : 3)
    AftLookaheadKernel(const StepTask task, const AftLookahead lookahead) {
  using Thread = StepThread<RingT, kWidth>;
  const int row = static_cast<int>(blockIdx.y);
  const int channel = static_cast<int>(blockIdx.x * kLanes + threadIdx.x) * kWidth;
  const bool inside = channel < task.hid;
  const int32_t slot = task.rows.slot[row];
  const int64_t t = task.rows.position[row];  // fetched together with the slot
  const int age = task.rows.age[row];
  if (slot < 0) {  // applies to the whole block
    if (inside && threadIdx.y == 0) {
      Thread::StoreOutput(task, row, channel, Fill<kWidth>(0.0F));
    }
    return;
  }
  const int summers = static_cast<int>(blockDim.y) - 1;
  const int summer = static_cast<int>(threadIdx.y) - 1;
  const int ahead = static_cast<int>(lookahead.rows);
  SharedLayout layout(DynamicShared());
  const LookaheadShared<kWide> shared(layout, summers, ahead);
  float* const slot_sums = lookahead.sums + slot * lookahead.slot_stride + channel;
  Thread thread(task, row, slot, t, channel);
  const LookaheadSummer<RingT, kWide> rows(thread, shared, ahead, summer, summers);

  const int tokens = age > 0 ? age : thread.InRing();
  const int parts = min(summers, (tokens + kGroup - 1) / kGroup);
  Sums<kWidth> sums;  // summers at age 0: the prefix; warp 0: what the parts do not contain
  if (summer >= 0) {
    if (age == 0) {
      rows.SumRing(inside);
      if (inside) sums = thread.LoadPrefixSums();
    } else if (summer < parts) {
      thread.SumRing(tokens, summer, summers, shared.Part(summer));
    }
  }
  if (inside && summer < 0) {
    sums = NoTokens<kWidth>();
    if (age > 0) {
      const float* const from = slot_sums + LookaheadSlot<kWide>::Row(age, task.hid);
      sums.num = Load<kWidth>(from);
      sums.den = Load<kWidth>(from + task.hid);
      sums.key = Load<kWidth>(slot_sums);
      if (kWide) sums.bias = Load<kWidth>(from + 2 * task.hid);
    }
    thread.Fetch(age <= 0);
    Merge(sums, thread.seen());
  }
  __syncthreads();
  if (inside && summer >= 0 && age == 0) rows.StoreRows(sums, parts, slot_sums, task.hid);
  if (inside && summer < 0) {
    for (int i = 0; i < parts; ++i) Merge(sums, LoadPart<kWidth>(shared.Part(i)));
    thread.Output(sums);
    thread.Advance();
  }
}

}  // namespace aft::kernels::cuda::aft_step
