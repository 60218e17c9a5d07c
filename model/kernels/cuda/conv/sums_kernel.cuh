#pragma once

#include <cstdint>

#include "model/kernels/cuda/conv/tiles.cuh"

// Sums of the tokens beyond the filter's reach, and the state; tiles.cuh explains them. Every sum
// has one order, whatever other rows are in the batch.
namespace aft::kernels::cuda {

inline constexpr int kConvSumsThreads = 128;
inline constexpr int kConvSumsChannels = 64;  // per block
inline constexpr int kConvSumsParts = 16;     // most threads that share a head's keys

struct ConvSumsShared {
  __host__ __device__ ConvSumsShared(SharedLayout& shared, int vec)
      : weight(shared.Take<float>(kConvTokens * kConvSumsChannels)),
        max(shared.Take<float>(kConvSumsChannels)),
        den(shared.Take<float>(kConvSumsChannels)),
        part(shared.Take<float>(kConvSumsThreads)),
        sum(shared.Take<float>(static_cast<int64_t>(kConvSumsThreads) * vec)) {}

  float* weight;  // [tokens, heads]
  float* max;     // [heads]
  float* den;
  float* part;  // [parts, heads]
  float* sum;   // [groups, channels]
};

// The threads of a block's heads: `parts` threads per head, which take turns with its tokens.
struct ConvHeadThreads {
  __device__ explicit ConvHeadThreads(int heads) {
    int columns = 1;
    while (columns < heads) columns *= 2;
    const int thread = static_cast<int>(threadIdx.x);
    parts = min(kConvSumsThreads / columns, kConvSumsParts);
    head = thread % columns;
    part = head < heads ? thread / columns : parts;
  }

  __device__ bool idle() const { return part >= parts; }

  int parts;
  int head;  // in the block
  int part;
};

// Finds the largest key of each head among the tokens [begin, end) into shared.max, and stores the
// first kConvTokens keys in shared.weight. Ends with a barrier.
__device__ inline void ConvReadKeys(const ConvTokens& tokens, int64_t begin, int64_t end,
                                    int first_head, int heads, const ConvHeadThreads& threads,
                                    const ConvSumsShared& shared) {
  const int i = threads.head;
  if (!threads.idle()) {
    float max = kEmptyMax;
    const auto take = [&](int64_t j, float k) {
      max = fmaxf(max, k);
      if (j < kConvTokens) shared.weight[j * heads + i] = k;
    };
    const int64_t n = end - begin;
    if (tokens.Plain(begin)) {
#pragma unroll 8
      for (int64_t j = threads.part; j < n; j += threads.parts) {
        take(j, tokens.PlainKey(begin + j, first_head + i));
      }
    } else {
      for (int64_t j = threads.part; j < n; j += threads.parts) {
        take(j, tokens.Key(begin + j, first_head + i));
      }
    }
    shared.part[threads.part * heads + i] = max;
  }
  __syncthreads();
  if (threads.part == 0) {
    float max = shared.part[i];
    for (int p = 1; p < threads.parts; ++p) max = fmaxf(max, shared.part[p * heads + i]);
    shared.max[i] = max;
    shared.den[i] = 0.0F;
  }
  __syncthreads();
}

// Grid: places, channels / kConvSumsChannels, sides.
template <int kVec>
__global__ void __launch_bounds__(kConvSumsThreads, kVec == 4 ? 4 : 6)
    ConvSumsKernel(ConvTileArgs args) {
  const ConvDims& dims = args.dims;
  const int64_t place = blockIdx.x;
  const ConvSequence sequence(args, ConvRowOf(args, place));
  const int64_t i = place - sequence.place;
  const int side = static_cast<int>(blockIdx.z);
  if (i >= sequence.tiles || sequence.slot < 0) return;
  // These would complete the sum of all tokens, which is needed only in a state.
  if (side == 0 ? args.rows.slot == nullptr && i + 1 == sequence.tiles : i == 0) return;
  const int64_t begin = side == 0 ? sequence.Left(i) : sequence.Right(i - 1);
  const int64_t end = side == 0 ? sequence.Left(i + 1) : sequence.Right(i);

  SharedLayout layout(DynamicShared());
  const ConvSumsShared shared(layout, kVec);
  const ConvTokens tokens(args, sequence);
  const int thread = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(blockIdx.y) * kConvSumsChannels;
  const int channels = min(kConvSumsChannels, dims.hid - first);
  const int head = first / dims.width;
  const int heads = (first + channels - 1) / dims.width - head + 1;

  // Values are being loaded while keys become weights.
  constexpr int kLanes = kConvSumsChannels / kVec;
  constexpr int kGroups = kConvSumsThreads / kLanes;
  constexpr int kFlight = kConvTokens / kGroups;
  const int lane = thread % kLanes;
  const int group = thread / kLanes;
  const int channel = first + lane * kVec;
  const bool mine = lane * kVec < channels;
  const bool direct = tokens.Direct<kVec>(begin);
  RingVector<float, kVec> flight[kFlight];
  const auto fetch = [&](int64_t t0) {
#pragma unroll
    for (int r = 0; r < kFlight; ++r) {
      const int64_t t = t0 + group + r * kGroups;
      if (direct && mine && t < end) tokens.Read<kVec>(t, channel, flight[r]);
    }
  };
  fetch(begin);
  const ConvHeadThreads threads(heads);
  ConvReadKeys(tokens, begin, end, head, heads, threads, shared);

  int of_channel[kVec];
#pragma unroll
  for (int c = 0; c < kVec; ++c) of_channel[c] = (channel + c) / dims.width - head;
  Channels<kVec> num = Fill<kVec>(0.0F);
  for (int64_t t0 = begin; t0 < end; t0 += kConvTokens) {
    if (t0 > begin) fetch(t0);
    const int n = static_cast<int>(min(end - t0, static_cast<int64_t>(kConvTokens)));
    for (int j = threads.part; j < n && !threads.idle(); j += threads.parts) {
      float* const weight = shared.weight + j * heads + threads.head;
      const float k = t0 == begin ? *weight : tokens.Key(t0 + j, head + threads.head);
      *weight = Exp(k - shared.max[threads.head]);
    }
    __syncthreads();
    if (thread < heads) {
      float den = shared.den[thread];
      for (int j = 0; j < n; ++j) den += shared.weight[j * heads + thread];
      shared.den[thread] = den;
    }
    const auto add = [&](int j, const Channels<kVec>& v) {
      const float* const weight = shared.weight + j * heads;
#pragma unroll
      for (int c = 0; c < kVec; ++c) num[c] = fmaf(weight[of_channel[c]], v[c], num[c]);
    };
    if (direct) {
#pragma unroll
      for (int r = 0; r < kFlight; ++r) {
        const int j = group + r * kGroups;
        if (j < n && mine) add(j, tokens.Get<kVec>(flight[r], t0 + j));
      }
    } else {
#pragma unroll 1
      for (int j = group; j < n && mine; j += kGroups) {
        add(j, tokens.Value<kVec>(t0 + j, channel));
      }
    }
    __syncthreads();
  }

  Store<kVec>(num, shared.sum + thread * kVec);
  __syncthreads();
  float* const out = args.Sums(place, side);
  for (int c = thread; c < channels; c += kConvSumsThreads) {
    float sum = 0.0F;
    for (int g = 0; g < kGroups; ++g) sum += shared.sum[g * kConvSumsChannels + c];
    out[first + c] = sum;
  }
  // A head's sums are written by the block that has the head's first channel.
  if (thread < heads && (head + thread) * dims.width >= first) {
    out[dims.den() + head + thread] = shared.den[thread];
    out[dims.max() + head + thread] = shared.max[thread];
  }
}

// Grid: (hid + heads) / block, rows, sides. A thread carries one channel's numerator or one head's
// denominator from tile to tile.
__global__ void __launch_bounds__(kConvSumsThreads) ConvCarryKernel(ConvTileArgs args) {
  const ConvDims& dims = args.dims;
  const ConvSequence sequence(args, blockIdx.y);
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const bool forward = blockIdx.z == 0;
  if (x >= dims.hid + dims.heads || sequence.slot < 0 || sequence.tiles == 0) return;
  const bool is_head = x >= dims.hid;
  const int max_at = dims.max() + (is_head ? x - dims.hid : x / dims.width);
  const int side = forward ? 0 : 1;
  const bool has_state = args.rows.slot != nullptr;

  float sum = 0.0F;
  float max = kEmptyMax;
  if (has_state && sequence.begin > 0) {
    const float* const state = args.state.base + sequence.slot * args.state.slot_stride;
    sum = state[x];
    max = state[max_at];
  }
  const auto place = [&](int64_t i) {
    return sequence.place + (forward ? i : sequence.tiles - 1 - i);
  };
  const auto write = [&](int64_t i) {
    float* const carry = args.Carry(place(i), side);
    carry[x] = sum;
    if (is_head) carry[max_at] = max;
  };
  // The number of sums to add: all if they end in a state, otherwise those between the tiles.
  const int64_t counted = sequence.tiles - (has_state ? 0 : 1);
  constexpr int kFlight = 8;
  for (int64_t i = 0; i < counted; i += kFlight) {
    float more[kFlight];
    float more_max[kFlight];
#pragma unroll
    for (int j = 0; j < kFlight; ++j) {
      if (i + j < counted) {
        const float* const sums = args.Sums(place(i + j), side);
        more[j] = sums[x];
        more_max[j] = sums[max_at];
      }
    }
#pragma unroll
    for (int j = 0; j < kFlight; ++j) {
      if (i + j < counted) {
        write(i + j);
        const float both = fmaxf(max, more_max[j]);
        sum = sum * Exp(max - both) + more[j] * Exp(more_max[j] - both);
        max = both;
      }
    }
  }
  write(counted);
}

// Grid: s, rows. Block 0 writes the prefix, and block i the token i before the row's end.
__global__ void __launch_bounds__(kConvSumsThreads) ConvStoreKernel(ConvTileArgs args) {
  const ConvDims& dims = args.dims;
  const ConvSequence sequence(args, blockIdx.y);
  const int64_t t = sequence.end - blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  if (sequence.slot < 0 || sequence.tiles == 0 || t < sequence.begin) return;
  float* const state = args.state.base + sequence.slot * args.state.slot_stride;
  if (blockIdx.x == 0) {
    const float* const carry = args.Carry(sequence.place + sequence.tiles, 0);
    for (int i = thread; i < dims.sums(); i += kConvSumsThreads) state[i] = carry[i];
    return;
  }
  const ConvTokens tokens(args, sequence);
  const int64_t row = t % dims.rows();
  const auto write = [&](float* ring, int64_t at, float x) {
    if (dims.bf16_ring) {
      reinterpret_cast<Bf16*>(ring)[at] = FromFloat<Bf16>(x);
    } else {
      ring[at] = x;
    }
  };
  for (int i = thread; i < dims.heads; i += kConvSumsThreads) {
    write(state + args.k_ring, row * dims.heads + i, tokens.Key(t, i));
  }
  for (int c = thread; c < dims.hid; c += kConvSumsThreads) {
    write(state + args.v_ring, row * dims.hid + c, tokens.Value<1>(t, c)[0]);
  }
}

}  // namespace aft::kernels::cuda
