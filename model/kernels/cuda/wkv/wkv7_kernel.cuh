#pragma once

#include <cstdint>

#include "model/kernels/cuda/channels.cuh"
#include "model/kernels/cuda/sums.cuh"
#include "model/kernels/cuda/wkv/rows.cuh"
#include "model/kernels/cuda/wkv/wkv.h"

namespace aft::kernels::cuda::wkv {

// A kernel is compiled for heads of kWidth channels, whose state is in registers, or with kWidth =
// 0 for heads of any width, whose state is in shared memory. A head that is wider than this does
// not fit there.
constexpr int kWkv7MostWidth = 256;
// A sum over the key channels has this many chains of additions, which are added at its end. Four
// neighbouring channels belong to one chain, the next four to the next. A column of the state has
// kParts threads, and each of them has some of the chains. So a result has the same bits with one
// thread a column (in a step, which waits for memory) as with eight (in a prompt, whose speed the
// chains limit).
template <int kWidth>
inline constexpr int kWkv7Chains = kWidth > 0 ? 8 : 1;

template <int kWidth, int kParts>
struct Wkv7Block {
  static constexpr int kMostWidth = kWidth > 0 ? kWidth : kWkv7MostWidth;
  // The columns of a thread. They share what it reads of a token.
  static constexpr int kOwn = kParts > 1 ? 4 : 1;
  static constexpr int kColumns = 32 / kParts * kOwn;  // of a warp
  // The tokens that are prepared together, each by a warp of its own.
  static constexpr int kTokens = kParts > 1 ? 4 : 1;
  // The channels of a lane in such a warp.
  static constexpr int kChannels = kMostWidth / 32;
  __host__ __device__ static constexpr int Warps(int width) {  // that have columns
    return (width + kColumns - 1) / kColumns;
  }
  __host__ __device__ static constexpr int Threads(int width) {
    return 32 * (Warps(width) + kTokens);
  }
};

// The numbers of a token that the warps of a block pass to each other. The key channels are read
// four at a time.
struct Wkv7Token {
  float* decay;    // [key channels]
  float* key;      // k
  float* unit;     // c
  float* removed;  // c * a
  float* r;
  float* value;  // [value channels] v
  float* bonus;  // [value channels] (sum of r k bonus) v
  float* gate;   // [value channels] g
  float* sums;   // [parts, value channels] S r; with one part the same array as value
};

// The numbers from one array of width channels to the next.
__host__ __device__ inline int Wkv7Stride(int width) { return (width + 3) / 4 * 4; }

template <int kWidth, int kParts>
struct Wkv7Shared {
  __host__ __device__ Wkv7Shared(SharedLayout& shared, int width) : stride(Wkv7Stride(width)) {
    for (float*& array : arrays) array = shared.Take<float>(int64_t{kGroups} * kTokens * stride);
    sums = kParts > 1 ? shared.Take<float>(int64_t{kGroups} * kTokens * kParts * stride)
                      : arrays[kValue];
    state = shared.Take<float>(kWidth == 0 ? int64_t{width} * width : 0);
  }

  // Token i of a group. Every second group has the same memory.
  __device__ Wkv7Token Token(int64_t group, int i) const {
    const int token = static_cast<int>(group % kGroups) * kTokens + i;
    const auto array = [&](int which) { return arrays[which] + token * stride; };
    return {array(0), array(1), array(2),
            array(3), array(4), array(5),
            array(6), array(7), sums + token * kParts * stride};
  }

  static constexpr int kGroups = 2;
  static constexpr int kTokens = Wkv7Block<kWidth, kParts>::kTokens;
  static constexpr int kValue = 5;  // of Wkv7Token::value
  int stride;
  float* arrays[8];  // of Wkv7Token
  float* sums;
  float* state;  // S [width, width]
};

// A thread's part of S, by key channel and column: registers, or shared memory.
template <int kWidth, int kParts>
struct Wkv7State {
  static constexpr int kOwn = Wkv7Block<kWidth, kParts>::kOwn;
  __device__ Wkv7State(const Wkv7Shared<kWidth, kParts>& /*shared*/, int /*width*/,
                       int /*column*/) {}
  __device__ float& at(int key, int column) { return s[key][column]; }

  float s[kWidth / kParts][kOwn];
};
template <>
struct Wkv7State<0, 1> {
  __device__ Wkv7State(const Wkv7Shared<0, 1>& shared, int head_width, int column)
      : s(shared.state + column), width(head_width) {}
  __device__ float& at(int key, int /*column*/) { return s[key * width]; }

  float* s;
  int width;
};

// The numbers of one channel of a token.
struct Wkv7Inputs {
  float r, w, k, v, a, g;
};

// The sum of eight numbers that are `stride` apart, or of one.
template <int kCount>
__device__ inline float SumOf(const float* x, int stride) {
  if constexpr (kCount == 1) {
    return x[0];
  } else {
    static_assert(kCount == 8);
    return ((x[0] + x[stride]) + (x[2 * stride] + x[3 * stride])) +
           ((x[4 * stride] + x[5 * stride]) + (x[6 * stride] + x[7 * stride]));
  }
}
// The sum over the threads of a column, in the order of SumOf.
template <int kParts>
__device__ inline float SumOfParts(float x) {
#pragma unroll
  for (int lanes = 32 / kParts; lanes < 32; lanes *= 2) {
    x += __shfl_xor_sync(0xFFFFFFFFU, x, lanes);
  }
  return x;
}

// A lane's channels of the tokens that its warp prepares and finishes. They are 32 apart.
template <int kWidth, int kParts>
class Wkv7Lane {
 public:
  __device__ Wkv7Lane(int width, const Wkv7Params& params, int64_t head)
      : width_(width), params_(params), head_(head) {}

  // Reads r, w, k, v, a, g of a token.
  __device__ void Load(const float* token, int64_t hid) {
    ForEach([&](int i, int channel) {
      const float* const in = token + channel;
      next_[i] = {in[0], in[hid], in[2 * hid], in[3 * hid], in[4 * hid], in[5 * hid]};
    });
  }

  // Writes what the recurrence reads of the token that was loaded.
  __device__ void Prepare(const Wkv7Token& token) {
    float square = 0.0F;
    float bonus = 0.0F;
    ForEach([&](int i, int channel) {
      const Wkv7Inputs& x = next_[i];
      const float rate = Sigmoid(x.a);
      const float key = x.k * fmaf(rate - 1.0F, params_.key_rate[head_ + channel], 1.0F);
      const float unit = x.k * params_.key_scale[head_ + channel];
      square = fmaf(unit, unit, square);
      bonus = fmaf(x.r * key, params_.bonus[head_ + channel], bonus);
      // e^(-1/2) = 0.60653...: the smallest decay is exp(-0.6065) = 0.545.
      token.decay[channel] = Exp(-0.606530660F * Sigmoid(x.w));
      token.key[channel] = key;
      token.unit[channel] = unit;
      token.removed[channel] = rate;
      token.r[channel] = x.r;
      token.value[channel] = x.v;
    });
    bonus = WarpSum(bonus);
    const float scale = rsqrtf(fmaxf(WarpSum(square), 1e-24F));
    ForEach([&](int i, int channel) {
      token.unit[channel] *= scale;
      token.removed[channel] *= token.unit[channel];
      token.bonus[channel] = bonus * next_[i].v;
      token.gate[channel] = next_[i].g;
    });
  }

  // Writes the results of a token that this warp prepared.
  template <typename Y>
  __device__ void Finish(const Wkv7Token& token, Y* y) const {
    const auto count = static_cast<float>(width_);
    float value[kChannels];
    float sum = 0.0F;
    ForEach([&](int i, int channel) {
      value[i] = SumOf<kParts>(token.sums + channel, Wkv7Stride(width_));
      sum += value[i];
    });
    const float mean = WarpSum(sum) / count;
    float square = 0.0F;
    ForEach([&](int i, int /*channel*/) {
      const float centred = value[i] - mean;
      square = fmaf(centred, centred, square);
    });
    const float scale = rsqrtf(WarpSum(square) / count + count * 1e-5F);
    ForEach([&](int i, int channel) {
      const float normed = fmaf((value[i] - mean) * scale, params_.norm_weight[head_ + channel],
                                params_.norm_bias[head_ + channel]);
      y[channel] = FromFloat<Y>((token.bonus[channel] + normed) * token.gate[channel]);
    });
  }

 private:
  static constexpr int kChannels = Wkv7Block<kWidth, kParts>::kChannels;

  // Calls each(i, channel) for the lane's channels.
  template <typename Each>
  __device__ void ForEach(const Each& each) const {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const int channel = static_cast<int>(threadIdx.x % 32) + 32 * i;
      if (kWidth > 0 || channel < width_) each(i, channel);
    }
  }

  int width_;
  const Wkv7Params& params_;
  int64_t head_;
  Wkv7Inputs next_[kChannels];
};

// A block runs the tokens of row blockIdx.y through head blockIdx.x, kTokens at a time. While the
// first warps advance the state by some tokens, the others finish those before them and prepare
// those after them.
template <int kWidth, int kParts, typename Y>
__global__ void __launch_bounds__(
    Wkv7Block<kWidth, kParts>::Threads(Wkv7Block<kWidth, kParts>::kMostWidth))
    Wkv7Kernel(Wkv7Params params, int head_width, ChunkRows rows, In packed, State state, Out out) {
  using Block = Wkv7Block<kWidth, kParts>;
  constexpr int kTokens = Block::kTokens;
  constexpr int kOwn = Block::kOwn;
  constexpr int kLanes = 32 / kParts;                    // that have different columns
  constexpr int kChains = kWkv7Chains<kWidth> / kParts;  // of a thread
  const int width = kWidth > 0 ? kWidth : head_width;
  const int64_t head = int64_t{blockIdx.x} * width;  // its first channel
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int helper = warp - Block::Warps(width);
  const Row row(rows, blockIdx.y);
  if (row.begin == row.end) return;
  Y* const y = static_cast<Y*>(out.data) + head;
  if (row.slot < 0) {
    for (int64_t t = row.begin; t < row.end; ++t) {
      for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
        y[t * out.stride + i] = FromFloat<Y>(0.0F);
      }
    }
    return;
  }
  SharedLayout layout(DynamicShared());
  const Wkv7Shared<kWidth, kParts> shared(layout, width);
  const int64_t groups = (row.end - row.begin + kTokens - 1) / kTokens;

  const int column = warp * Block::kColumns + static_cast<int>(threadIdx.x) % kLanes * kOwn;
  const int part = static_cast<int>(threadIdx.x) % 32 / kLanes;
  const bool exists = helper < 0 && (kWidth > 0 || column < width);
  // The thread's keys are in fours, which begin at first(four). Calls each(i, j) for key first + j,
  // which is its key i.
  const int fours = kWidth > 0 ? kWidth / 4 / kParts : (width + 3) / 4;
  const auto first = [&](int four) { return (four * kParts + part) * 4; };
  const auto for_keys = [&](int four, const auto& each) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (exists && (kWidth > 0 || first(four) + j < width)) each(four * 4 + j, j);
    }
  };
  const int64_t begin = head * width + (exists ? column : 0);
  float* const kept = state.base + row.slot * state.slot_stride + begin;
  const float* before = kept;  // null: zeros
  if (row.is_new) before = params.initial == nullptr ? nullptr : params.initial + begin;
  Wkv7State<kWidth, kParts> s(shared, width, column);
#pragma unroll
  for (int four = 0; four < fours; ++four) {
    for_keys(four, [&](int key, int j) {
      Channels<kOwn> read = Fill<kOwn>(0.0F);
      if (before != nullptr) read = Load<kOwn>(before + (first(four) + j) * width);
#pragma unroll
      for (int c = 0; c < kOwn; ++c) s.at(key, c) = read[c];
    });
  }

  // Advances the state by a token.
  const auto advance = [&](const Wkv7Token& token) {
    Channels<kOwn> v = Fill<kOwn>(0.0F);
    if (exists) v = Load<kOwn>(token.value + column);
    float found[kOwn][kChains] = {};
#pragma unroll
    for (int four = 0; four < fours; ++four) {
      const Channels<4> unit = Load<4>(token.unit + first(four));
      for_keys(four, [&](int key, int j) {
#pragma unroll
        for (int c = 0; c < kOwn; ++c) {
          float& chain = found[c][four % kChains];
          chain = fmaf(unit[j], s.at(key, c), chain);
        }
      });
    }
    float minus[kOwn];
#pragma unroll
    for (int c = 0; c < kOwn; ++c) minus[c] = -SumOfParts<kParts>(SumOf<kChains>(found[c], 1));
    float sums[kOwn][kChains] = {};
#pragma unroll
    for (int four = 0; four < fours; ++four) {
      const Channels<4> decay = Load<4>(token.decay + first(four));
      const Channels<4> k = Load<4>(token.key + first(four));
      const Channels<4> removed = Load<4>(token.removed + first(four));
      const Channels<4> r = Load<4>(token.r + first(four));
      for_keys(four, [&](int key, int j) {
#pragma unroll
        for (int c = 0; c < kOwn; ++c) {
          float& x = s.at(key, c);
          x = fmaf(decay[j], x, fmaf(minus[c], removed[j], k[j] * v[c]));
          float& chain = sums[c][four % kChains];
          chain = fmaf(x, r[j], chain);
        }
      });
    }
    Channels<kOwn> sum;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) sum[c] = SumOf<kChains>(sums[c], 1);
    if (exists) Store(sum, token.sums + part * shared.stride + column);
  };

  const float* const in = static_cast<const float*>(packed.data) + head;
  Wkv7Lane<kWidth, kParts> lane(width, params, head);
  const auto token_of = [&](int64_t group) { return row.begin + group * kTokens + helper; };
  const auto load = [&](int64_t t) {
    if (helper >= 0 && t < row.end) lane.Load(in + t * packed.stride, params.hid);
  };
  load(token_of(0));
  for (int64_t group = -1; group <= groups; ++group) {
    if (helper >= 0) {
      const int64_t done = token_of(group - 1);
      if (group > 0 && done < row.end) {
        lane.Finish(shared.Token(group - 1, helper), y + done * out.stride);
      }
      if (token_of(group + 1) < row.end) lane.Prepare(shared.Token(group + 1, helper));
      load(token_of(group + 2));
    } else if (group >= 0) {
      const int64_t left = row.end - row.begin - group * kTokens;
      const int count = left < kTokens ? static_cast<int>(left) : kTokens;
      for (int i = 0; i < count; ++i) advance(shared.Token(group, i));
    }
    __syncthreads();
  }
#pragma unroll
  for (int four = 0; four < fours; ++four) {
    for_keys(four, [&](int key, int j) {
      Channels<kOwn> x;
#pragma unroll
      for (int c = 0; c < kOwn; ++c) x[c] = s.at(key, c);
      Store(x, kept + (first(four) + j) * width);
    });
  }
}

}  // namespace aft::kernels::cuda::wkv
