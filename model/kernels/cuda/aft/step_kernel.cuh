#pragma once

#include <type_traits>

#include "model/kernels/cuda/aft/math.cuh"
#include "model/kernels/cuda/types.h"

// One AFT token of one sequence (model/kernels/README.md). y is computed from the prefix, the ring
// and the token itself. Then token t - s + 1 moves from the ring into the prefix, and t takes its
// place. The kernel is bound by memory: a number of the ring takes about ten instructions, one of
// them an exponential, and a GPU has time for seventy.
//
// A block is one row and blockDim.x * N channels. With a ring, warp 0 fetches the token and the
// prefix, while each of the other warps sums its groups of the ring's tokens with kGroup tokens in
// flight. Warp 0 then adds up the parts in order. How a sum is cut depends on the position alone,
// never on the batch.
namespace aft::kernels::cuda::aft_step {

// Replaces the ring's number type when s <= 1.
struct NoRing {};

inline constexpr int kWidth = 4;       // channels of a thread; 1 where they cannot be read at once
inline constexpr int kLanes = 32;      // blockDim.x of kernels with a ring
inline constexpr int kGroup = 8;       // tokens of the ring that a thread has in flight
inline constexpr int kMaxSummers = 7;  // warps that sum the ring

inline constexpr float kNoBias = -3e38F;  // bias of a missing token: a weight of zero

struct StepTask {
  StepRows rows;
  In qkv;
  State state;
  Out y;
  int hid = 0;
  int64_t prefix_block = 0;     // H
  const float* bias = nullptr;  // null: AFT-simple
  int64_t bias_rows = 1;
  int ring_rows = 0;   // s - 1, or 0
  int64_t k_ring = 0;  // floats from the slot's start
  int64_t v_ring = 0;
};

// Sums over tokens of exp(k + w) v and exp(k + w), relative to exp(key + bias). The two parts of
// the reference are kept apart: differences of keys are exact where they matter, and at |k| ~ 1e4 a
// sum k + w would lose four digits.
template <int N>
struct Sums {
  Channels<N> num;
  Channels<N> den;
  Channels<N> key;
  Channels<N> bias;
};

template <int N>
__device__ inline Sums<N> NoTokens() {
  return {Fill<N>(0.0F), Fill<N>(0.0F), Fill<N>(kEmptyMax), Fill<N>(0.0F)};
}

template <int N>
__device__ inline void Merge(Sums<N>& sums, const Sums<N>& more) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float key = fmaxf(sums.key[i], more.key[i]);
    const float old_key = sums.key[i] - key;
    const float more_key = more.key[i] - key;
    const float bias = fmaxf(old_key + sums.bias[i], more_key + more.bias[i]);
    const float old_weight = Exp(old_key + (sums.bias[i] - bias));
    const float more_weight = Exp(more_key + (more.bias[i] - bias));
    sums.num[i] = sums.num[i] * old_weight + more.num[i] * more_weight;
    sums.den[i] = sums.den[i] * old_weight + more.den[i] * more_weight;
    sums.key[i] = key;
    sums.bias[i] = bias;
  }
}

// [4][kLanes * N] in shared memory: each thread's sums, one kind after the other.
template <int N>
__device__ inline void StorePart(const Sums<N>& sums, float* part) {
  float* const mine = part + threadIdx.x * N;
  Store(sums.num, mine);
  Store(sums.den, mine + kLanes * N);
  Store(sums.key, mine + 2 * kLanes * N);
  Store(sums.bias, mine + 3 * kLanes * N);
}
template <int N>
__device__ inline Sums<N> LoadPart(const float* part) {
  const float* const mine = part + threadIdx.x * N;
  return {Load<N>(mine), Load<N>(mine + kLanes * N), Load<N>(mine + 2 * kLanes * N),
          Load<N>(mine + 3 * kLanes * N)};
}

// A sequence's ring at a thread's first channel; rows are hid numbers apart.
template <typename RingT>
struct Ring {
  RingT* k;
  RingT* v;
};

// Tokens of the ring, oldest first. A smaller group repeats its last one, with a weight of zero.
template <int N>
struct Group {
  Channels<N> k[kGroup];
  Channels<N> v[kGroup];
};

// Adds one channel of a group. The group's keys are relative to the new reference key, and the old
// one is `old_key` (<= 0) relative to it. w[j] is the bias of token j.
template <int N>
__device__ inline void AddChannel(const Group<N>& group, int i, const float (&w)[kGroup],
                                  float old_key, float& num, float& den, float& bias) {
  float new_bias = old_key + bias;
#pragma unroll
  for (int j = 0; j < kGroup; ++j) new_bias = fmaxf(new_bias, group.k[j][i] + w[j]);
  const float keep = Exp(old_key + (bias - new_bias));
  num *= keep;
  den *= keep;
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    const float e = Exp(group.k[j][i] + (w[j] - new_bias));
    num += e * group.v[j][i];
    den += e;
  }
  bias = new_bias;
}

// Raises `key` to the largest of itself and the group's keys, and makes the group's keys relative
// to it. Returns the old key relative to the new one.
template <int N>
__device__ inline Channels<N> TakeKeys(Group<N>& group, Channels<N>& key) {
  Channels<N> old_key;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float largest = key[i];
#pragma unroll
    for (int j = 0; j < kGroup; ++j) largest = fmaxf(largest, group.k[j][i]);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) group.k[j][i] -= largest;
    old_key[i] = key[i] - largest;
    key[i] = largest;
  }
  return old_key;
}

// One row, as one thread sees it. Threads beyond the last channels work on the last ones.
template <typename RingT, int N>
class StepThread {
 public:
  static constexpr bool kHasRing = !std::is_same_v<RingT, NoRing>;

  __device__ StepThread(const StepTask& task, int row, int32_t slot, int64_t t, int channel)
      : task_(task),
        row_(row),
        t_(t),
        channel_(min(channel, task.hid - N)),
        slot_(task.state.base + slot * task.state.slot_stride) {
    if constexpr (kHasRing) head_ = static_cast<int>(t_ % task.ring_rows);
  }

  // The number of tokens that the ring holds.
  __device__ int InRing() const {
    return t_ < task_.ring_rows ? static_cast<int>(t_) : task_.ring_rows;
  }

  // A pointer to w of the token `age` positions before this one; w of later tokens follows.
  __device__ const float* Bias(int age) const {
    return task_.bias + BiasRow(t_) * (task_.ring_rows + 1) + task_.ring_rows - age;
  }
  // w for token t + r and the token `age` positions before t.
  __device__ float LaterBias(int r, int age) const {
    const int column = task_.ring_rows - age - r;
    return column < 0 ? 0.0F : task_.bias[BiasRow(t_ + r) * (task_.ring_rows + 1) + column];
  }

  // The sums of the tokens that have left the window. REQUIRES: no prefix blocks.
  __device__ Sums<N> LoadPrefixSums() const {
    return LoadPrefix(slot_ + channel_, t_ > task_.ring_rows);
  }

  // Loads up to kGroup tokens from the one `age` before this one on. The whole warp must call it.
  __device__ Group<N> LoadGroup(int age) const {
    const Ring<RingT> ring = ring_view();
    const int first = head_ - age + (head_ < age ? task_.ring_rows : 0);
    Group<N> group;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      int place = first + min(j, age - 1);
      place -= place < task_.ring_rows ? 0 : task_.ring_rows;
      group.k[j] = Load<N>(ring.k + place * task_.hid);
      group.v[j] = Load<N>(ring.v + place * task_.hid);
    }
    // Without this, ptxas would load the values only after it has waited for the keys. It moves no
    // load over a __syncwarp.
    __syncwarp();
    return group;
  }

  // The whole warp sums groups `first`, `first` + stride, ... of the last `tokens` tokens into
  // `part`. Group `first` must exist. `part` is shared memory: the tokens in flight need the
  // registers.
  __device__ void SumRing(int tokens, int first, int stride, float* part) const {
    const int oldest = tokens - first * kGroup;
    for (int age = oldest; age > 0; age -= stride * kGroup) {
      Group<N> group = LoadGroup(age);
      const float* const biases = Bias(age);
      float w[kGroup];
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        w[j] = biases[min(j, age - 1)];
        if (j >= age) w[j] = kNoBias;
      }
      Sums<N> sums = age == oldest ? NoTokens<N>() : LoadPart<N>(part);
      const Channels<N> old_key = TakeKeys(group, sums.key);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        AddChannel(group, i, w, old_key[i], sums.num[i], sums.den[i], sums.bias[i]);
      }
      StorePart(sums, part);
    }
  }

  // Fetches the token, the prefix sums and the token that leaves the window, and computes
  // everything that does not need the ring's sums. `prefix` says whether seen() includes the prefix
  // sums; the sums of look-ahead already contain them.
  __device__ void Fetch(bool prefix = true) {
    const float* const token =
        static_cast<const float*>(task_.qkv.data) + row_ * task_.qkv.stride + channel_;
    q_ = Load<N>(token);
    k_ = Load<N>(token + task_.hid);
    v_ = Load<N>(token + 2 * task_.hid);
    const int64_t leaving = t_ - task_.ring_rows;
    const int64_t block = task_.prefix_block > 0 ? t_ / task_.prefix_block : 0;
    const int64_t block_start = block * task_.prefix_block;
    float* const own_at = slot_ + channel_ + (block & 1) * 3 * task_.hid;
    float* const other_at = slot_ + channel_ + ((block & 1) ^ 1) * 3 * task_.hid;
    // The place of the own block's sums still holds the block two before, until the own block's
    // first token enters. At position 0 it holds the state of the slot's previous sequence.
    Sums<N> own = LoadPrefix(own_at, leaving > block_start);
    const Sums<N> other = LoadPrefix(other_at, block > 0);
    Channels<N> old_k;
    Channels<N> old_v;
    if constexpr (kHasRing) {
      const Ring<RingT> ring = ring_view();
      old_k = leaving < 0 ? Fill<N>(kEmptyMax) : Load<N>(ring.k + head_ * task_.hid);
      old_v = leaving < 0 ? Fill<N>(0.0F) : Load<N>(ring.v + head_ * task_.hid);
    }
    if constexpr (kHasRing) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        k_[i] = RoundTo<RingT>(k_[i]);
        v_[i] = RoundTo<RingT>(v_[i]);
      }
    } else {
      old_k = k_;
      old_v = v_;
    }

    const float w = task_.bias == nullptr ? 0.0F : *Bias(0);
    seen_ = {v_, Fill<N>(1.0F), k_, Fill<N>(w)};
    if (prefix) {
      Merge(seen_, own);
      if (task_.prefix_block > 0) Merge(seen_, other);
    }

    // Both blocks can have tokens in the ring, so the one that leaves belongs to t's block or to
    // the one before.
    const bool of_own = leaving >= block_start || leaving < 0;
    next_at_ = of_own ? own_at : other_at;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Prefix sums{of_own ? own.num[i] : other.num[i], of_own ? own.den[i] : other.den[i],
                  of_own ? own.key[i] : other.key[i]};
      if (leaving >= 0) Insert(sums, old_k[i], old_v[i]);
      next_num_[i] = sums.num;
      next_den_[i] = sums.den;
      next_max_[i] = sums.max;
    }
  }

  // The token and the prefix sums that it sees.
  __device__ const Sums<N>& seen() const { return seen_; }

  // Stores y, given the sums of all tokens that t sees.
  __device__ void Output(const Sums<N>& sums) const {
    Channels<N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = Gated(sums.num[i], sums.den[i], q_[i]);
    StoreOutput(task_, row_, channel_, y);
  }

  // Moves the window forward by one token. Call it when the state has been read.
  __device__ void Advance() const {
    if (t_ >= task_.ring_rows || t_ == 0) StorePrefix(next_num_, next_den_, next_max_, next_at_);
    if (t_ == 0 && task_.prefix_block > 0) {
      StorePrefix(Fill<N>(0.0F), Fill<N>(0.0F), Fill<N>(kEmptyMax),
                  slot_ + channel_ + 3 * task_.hid);
    }
    if constexpr (kHasRing) {
      const Ring<RingT> ring = ring_view();
      StoreGlobal(k_, ring.k + head_ * task_.hid);
      StoreGlobal(v_, ring.v + head_ * task_.hid);
    }
  }

  __device__ static void StoreOutput(const StepTask& task, int row, int channel,
                                     const Channels<N>& y) {
    ToOut(task.y, row * task.y.stride + channel, [&](auto* to) { StoreGlobal(y, to); });
  }

 private:
  __device__ int64_t BiasRow(int64_t t) const {
    return t < task_.bias_rows ? t : task_.bias_rows - 1;
  }
  __device__ Ring<RingT> ring_view() const {
    return {reinterpret_cast<RingT*>(slot_ + task_.k_ring) + channel_,
            reinterpret_cast<RingT*>(slot_ + task_.v_ring) + channel_};
  }

  __device__ Sums<N> LoadPrefix(const float* at, bool visible) const {
    if (!visible) return NoTokens<N>();
    return {Load<N>(at), Load<N>(at + task_.hid), Load<N>(at + 2 * task_.hid), Fill<N>(0.0F)};
  }
  __device__ void StorePrefix(const Channels<N>& num, const Channels<N>& den,
                              const Channels<N>& max, float* at) const {
    StoreGlobal(num, at);
    StoreGlobal(den, at + task_.hid);
    StoreGlobal(max, at + 2 * task_.hid);
  }

  const StepTask& task_;
  const int row_;
  const int64_t t_;
  const int channel_;
  float* const slot_;
  int head_ = 0;  // place of token t - s + 1 in the ring, and afterwards of t
  // Set by Fetch. They are not initialised before, so that summers need no registers for them.
  Sums<N> seen_;
  float* next_at_;  // the prefix that a token enters, and its next value
  Channels<N> next_num_;
  Channels<N> next_den_;
  Channels<N> next_max_;
  Channels<N> q_;
  Channels<N> k_;
  Channels<N> v_;
};

// Grid: channel tiles, rows. Block: without a ring one or more warps wide and 1 high; with a ring
// kLanes wide, and as high as warp 0 and the summers together. Shared memory: StepParts.
struct StepParts {
  __host__ __device__ StepParts(SharedLayout& shared, int summers, int n)
      : sums(shared.Take<float>(summers * 4 * kLanes * n)) {}
  float* sums;  // [summers][4][kLanes * N]
};

// Limits of registers per thread: 72 without a ring, so that an SM holds seven blocks of four
// warps; 96 with a bf16 ring, for four blocks of five warps; 128 with a fp32 ring, for three.
template <typename RingT>
inline constexpr int kStepThreads = kLanes*(1 + kMaxSummers);
template <>
inline constexpr int kStepThreads<NoRing> = 128;
template <>
inline constexpr int kStepThreads<Bf16> = 320;
template <typename RingT>
inline constexpr int kStepBlocks = std::is_same_v<RingT, NoRing> ? 7 : 2;

template <typename RingT, int N>
__global__ void __launch_bounds__(kStepThreads<RingT>, kStepBlocks<RingT>)
    AftStepKernel(const StepTask task) {
  using Thread = StepThread<RingT, N>;
  const int row = static_cast<int>(blockIdx.y);
  const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * N;
  const bool inside = channel < task.hid;
  const int32_t slot = task.rows.slot[row];
  const int64_t t = task.rows.position[row];  // fetched together with the slot
  if (slot < 0) {                             // applies to the whole block
    if (inside && threadIdx.y == 0) Thread::StoreOutput(task, row, channel, Fill<N>(0.0F));
    return;
  }
  Thread thread(task, row, slot, t, channel);
  if constexpr (!Thread::kHasRing) {
    if (inside) {
      thread.Fetch();
      thread.Output(thread.seen());
      thread.Advance();
    }
  } else {
    const int summers = static_cast<int>(blockDim.y) - 1;
    const int summer = static_cast<int>(threadIdx.y) - 1;
    SharedLayout shared(DynamicShared());
    const StepParts parts(shared, summers, N);
    constexpr int kPart = 4 * kLanes * N;
    const int tokens = thread.InRing();
    if (summer >= 0 && summer * kGroup < tokens) {
      thread.SumRing(tokens, summer, summers, parts.sums + summer * kPart);
    }
    if (inside && summer < 0) thread.Fetch();
    __syncthreads();
    if (inside && summer < 0) {
      Sums<N> sums = thread.seen();
      for (int i = 0; i < summers && i * kGroup < tokens; ++i) {
        Merge(sums, LoadPart<N>(parts.sums + i * kPart));
      }
      thread.Output(sums);
      thread.Advance();
    }
  }
}

}  // namespace aft::kernels::cuda::aft_step
