// One step at position t (contracts.md 4; aft-operators.md 3.3):
//
//   before   the prefix sums hold the tokens <= t - s, the ring holds t - s + 1 .. t - 1
//   output   M = max of all keys that take part; x_j = (K_j - M) + w[t - j], x_p = m - M
//            y = [exp(x_p) n + sum_j exp(x_j) v_j] / [exp(x_p) D + sum_j exp(x_j)] * sigmoid(q)
//   after    token t - s + 1 enters the prefix and token t takes its place in the ring
//
// Only positive terms are added, so nothing cancels. The difference comes before the bias: the
// other order loses 4e-4 at |K| ~ 1e4. M is the exact maximum of copies of inputs, so the running
// form used here gives the same bits as a fresh one after a chunk border.

#include "model/kernels/aft.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "model/kernels/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/aft.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// One row of the batch, at the first channel of a tile.
struct Row {
  const float* q;  // keys and values lie hid and 2 * hid further
  int64_t qkv_stride;
  float* y;
  int64_t y_stride;
  float* state;
  int64_t position;
  int64_t length;
  int64_t next_unit;  // floats from `state` to the state of the unit that comes after, or 0
};

// (n, D, m) of one channel tile; the three are hid floats apart.
template <int kVectors, class D>
class Prefix {
 public:
  using V = hn::Vec<D>;

  Prefix(float* n, int64_t hid) : n_(n), d_(n + hid), m_(n + 2 * hid) {}

  HWY_INLINE void Reset(D d) {
    for (int i = 0; i < kVectors; ++i) {
      hn::StoreU(hn::Zero(d), d, At(n_, d, i));
      hn::StoreU(hn::Zero(d), d, At(d_, d, i));
      hn::StoreU(hn::Set(d, kEmptyMax), d, At(m_, d, i));
    }
  }

  HWY_INLINE void Insert(D d, const V* k, const V* v) {
    for (int i = 0; i < kVectors; ++i) {
      const V m = hn::LoadU(d, At(m_, d, i));
      const V e = Exp(d, hn::Neg(hn::Abs(hn::Sub(k[i], m))));
      // One of the two factors exp(m - m') and exp(k - m') is exactly 1.
      const auto rises = hn::Gt(k[i], m);
      const V one = hn::Set(d, 1.0F);
      const V keep = hn::IfThenElse(rises, e, one);
      const V add = hn::IfThenElse(rises, one, e);
      const V n = hn::Mul(hn::LoadU(d, At(n_, d, i)), keep);
      hn::StoreU(hn::MulAdd(add, v[i], n), d, At(n_, d, i));
      hn::StoreU(hn::MulAdd(hn::LoadU(d, At(d_, d, i)), keep, add), d, At(d_, d, i));
      hn::StoreU(hn::Max(m, k[i]), d, At(m_, d, i));
    }
  }

  HWY_INLINE V Max(D d, int i) const { return hn::LoadU(d, At(m_, d, i)); }
  HWY_INLINE V Num(D d, int i) const { return hn::LoadU(d, At(n_, d, i)); }
  HWY_INLINE V Den(D d, int i) const { return hn::LoadU(d, At(d_, d, i)); }

 private:
  static HWY_INLINE float* At(float* p, D d, int i) { return p + i * hn::Lanes(d); }

  float* n_;
  float* d_;
  float* m_;
};

// Runs one row over kVectors vectors of channels.
template <int kVectors, class D>
class Tile {
 public:
  using V = hn::Vec<D>;

  Tile(D d, const AftParams& params, const Row& row, float* scratch)
      : d_(d),
        lanes_(static_cast<int64_t>(hn::Lanes(d))),
        params_(params),
        layout_{params.hid, params.window, params.prefix_block},
        row_(row),
        prefix_{{row.state, params.hid}, {row.state + 3 * params.hid, params.hid}},
        k_ring_(row.state + layout_.KRing()),
        v_ring_(row.state + layout_.VRing()),
        ring_stride_(params.hid) {
    // A prompt chunk reads the ring again and again: from a packed copy, because rows a power of
    // two apart would fall into few cache sets.
    if (row.length >= kPackFrom && ring_rows() > 0) {
      float* packed = scratch;
      ring_stride_ = kVectors * lanes_;
      CopyRing(k_ring_, params.hid, packed, ring_stride_);
      CopyRing(v_ring_, params.hid, packed + ring_rows() * ring_stride_, ring_stride_);
      k_ring_ = packed;
      v_ring_ = packed + ring_rows() * ring_stride_;
    }
  }

  HWY_INLINE void Run() {
    Start();
    for (int64_t i = 0; i < row_.length; ++i) {
      if (params_.wide_bias) {
        Step<true>(row_.position + i, i);
      } else {
        Step<false>(row_.position + i, i);
      }
    }
    if (ring_stride_ != params_.hid || k_ring_ != row_.state + layout_.KRing()) {
      CopyRing(k_ring_, ring_stride_, row_.state + layout_.KRing(), params_.hid);
      CopyRing(v_ring_, ring_stride_, row_.state + layout_.VRing(), params_.hid);
    }
  }

 private:
  static constexpr int64_t kPackFrom = 8;

  HWY_INLINE int64_t ring_rows() const { return layout_.ring_rows(); }
  HWY_INLINE V Load(const float* p, int i) const { return hn::LoadU(d_, p + i * lanes_); }
  HWY_INLINE int64_t BlockOf(int64_t t) const {
    return params_.prefix_block > 0 ? t / params_.prefix_block : 0;
  }

  // Decode steps read each ring once, from memory when many sequences are live: the next unit's
  // rows are fetched while this one's are computed.
  HWY_INLINE void PrefetchNext(int64_t row) const {
    if (row_.next_unit == 0) return;
    for (int i = 0; i < kVectors; ++i) {
      hwy::Prefetch(k_ring_ + row + row_.next_unit + i * lanes_);
      hwy::Prefetch(v_ring_ + row + row_.next_unit + i * lanes_);
    }
  }

  HWY_INLINE void CopyRing(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
    for (int64_t r = 0; r < ring_rows(); ++r) {
      for (int i = 0; i < kVectors; ++i) {
        hn::StoreU(Load(from + r * from_stride, i), d_, to + r * to_stride + i * lanes_);
      }
    }
  }

  // Maxima before the first step: of the block of the token before it (of everything when H = 0),
  // and of the block before that one.
  HWY_INLINE void Start() {
    for (int i = 0; i < kVectors; ++i) block_max_[i] = before_max_[i] = hn::Set(d_, kEmptyMax);
    const int64_t t = row_.position;
    if (t == 0) {
      for (int64_t p = 0; p < layout_.prefixes(); ++p) prefix_[p].Reset(d_);
      return;
    }
    const int64_t block = BlockOf(t - 1);
    const int64_t block_start = block * params_.prefix_block;
    const int64_t last_inserted = t - std::max<int64_t>(params_.window, 1);
    for (int i = 0; i < kVectors; ++i) {
      if (last_inserted >= block_start) block_max_[i] = prefix_[block & 1].Max(d_, i);
      if (block > 0) before_max_[i] = prefix_[(block - 1) & 1].Max(d_, i);
    }
    for (int64_t j = std::max<int64_t>(t - ring_rows(), 0); j < t; ++j) {
      const float* k = k_ring_ + j % ring_rows() * ring_stride_;
      V* max = j >= block_start ? block_max_ : before_max_;
      for (int i = 0; i < kVectors; ++i) max[i] = hn::Max(max[i], Load(k, i));
    }
  }

  template <bool kWide>
  HWY_INLINE void Step(int64_t t, int64_t i_token) {
    const int64_t h = params_.prefix_block;
    const int64_t s = params_.window;
    const int64_t block = BlockOf(t);
    const int64_t block_start = block * h;
    const float* q = row_.q + i_token * row_.qkv_stride;
    V k[kVectors];
    V v[kVectors];
    V max[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      k[i] = Load(q + params_.hid, i);
      v[i] = Load(q + 2 * params_.hid, i);
      if (h > 0 && t == block_start) {
        before_max_[i] = block_max_[i];
        block_max_[i] = k[i];
      } else {
        block_max_[i] = hn::Max(block_max_[i], k[i]);
      }
      max[i] = hn::Max(before_max_[i], block_max_[i]);
    }
    if (s == 0) Insert(t, k, v);

    // The prefix of the block before t's holds that block since its first token left the window.
    // That of t's own block still holds the block two before until then.
    const Prefix<kVectors, D>* before = block > 0 ? &prefix_[(block - 1) & 1] : nullptr;
    const Prefix<kVectors, D>* own = t - s >= block_start ? &prefix_[block & 1] : nullptr;
    const float* w = params_.band + (params_.band_rows > 1 ? t * s : 0);
    const int64_t in_ring = std::min(t, ring_rows());

    V shift[kVectors];  // second normalisation, of K - M + w
    if constexpr (kWide) {
      for (int i = 0; i < kVectors; ++i) {
        shift[i] =
            s > 0 ? hn::Add(hn::Sub(k[i], max[i]), hn::Set(d_, w[0])) : hn::Set(d_, kEmptyMax);
        if (before != nullptr) shift[i] = hn::Max(shift[i], hn::Sub(before->Max(d_, i), max[i]));
        if (own != nullptr) shift[i] = hn::Max(shift[i], hn::Sub(own->Max(d_, i), max[i]));
      }
      ForRing(t, in_ring, [&](int64_t age, int64_t row) HWY_ATTR {
        const V bias = hn::Set(d_, w[age]);
        for (int i = 0; i < kVectors; ++i) {
          const V x = hn::Add(hn::Sub(Load(k_ring_ + row, i), max[i]), bias);
          shift[i] = hn::Max(shift[i], x);
        }
      });
    }
    V num[kVectors];
    V den[kVectors];
    for (int i = 0; i < kVectors; ++i) num[i] = den[i] = hn::Zero(d_);
    // Adds exp(key - M + bias) * (value, mass) to the sums, for all channels of the tile.
    const auto add = [&](const auto& key, V bias, const auto& value, const auto& mass) HWY_ATTR {
      V e[kVectors];
      for (int i = 0; i < kVectors; ++i) {
        e[i] = hn::Add(hn::Sub(key(i), max[i]), bias);
        if constexpr (kWide) e[i] = hn::Sub(e[i], shift[i]);
      }
      ExpEach<kVectors>(d_, e);
      for (int i = 0; i < kVectors; ++i) {
        num[i] = hn::MulAdd(e[i], value(i), num[i]);
        den[i] = mass(e[i], i, den[i]);
      }
    };
    const auto one = [](V e, int, V sum) HWY_ATTR { return hn::Add(sum, e); };
    for (const Prefix<kVectors, D>* prefix : {before, own}) {
      if (prefix == nullptr) continue;
      add([&](int i) HWY_ATTR { return prefix->Max(d_, i); }, hn::Zero(d_),
          [&](int i) HWY_ATTR { return prefix->Num(d_, i); },
          [&](V e, int i, V sum) HWY_ATTR { return hn::MulAdd(e, prefix->Den(d_, i), sum); });
    }
    ForRing(t, in_ring, [&](int64_t age, int64_t row) HWY_ATTR {
      PrefetchNext(row);
      add([&](int i) HWY_ATTR { return Load(k_ring_ + row, i); }, hn::Set(d_, w[age]),
          [&](int i) HWY_ATTR { return Load(v_ring_ + row, i); }, one);
    });
    if (s > 0) {
      add([&](int i) HWY_ATTR { return k[i]; }, hn::Set(d_, w[0]),
          [&](int i) HWY_ATTR { return v[i]; }, one);
    }
    float* y = row_.y + i_token * row_.y_stride;
    for (int i = 0; i < kVectors; ++i) {
      const V gated = hn::Mul(den[i], OnePlusExpNeg(d_, Load(q, i)));
      hn::StoreU(hn::Div(num[i], gated), d_, y + i * lanes_);
    }
    if (s > 0) Retire(t, k, v);
  }

  // fn(age, row) for the ring's tokens t - in_ring .. t - 1, oldest first; row is an offset in
  // floats.
  template <class Fn>
  HWY_INLINE void ForRing(int64_t t, int64_t in_ring, const Fn& fn) const {
    if (in_ring == 0) return;
    const int64_t ring = ring_rows() * ring_stride_;
    int64_t row = (t - in_ring) % ring_rows() * ring_stride_;
    for (int64_t age = in_ring; age > 0; --age) {
      fn(age, row);
      row += ring_stride_;
      if (row == ring) row = 0;
    }
  }

  // After the output of t: the oldest token of the window, t - s + 1, enters the prefix, and t
  // takes its place in the ring.
  HWY_INLINE void Retire(int64_t t, const V* k, const V* v) {
    if (ring_rows() == 0) {
      Insert(t, k, v);
      return;
    }
    const int64_t row = t % ring_rows() * ring_stride_;
    if (t >= ring_rows()) {
      V old_k[kVectors];
      V old_v[kVectors];
      for (int i = 0; i < kVectors; ++i) {
        old_k[i] = Load(k_ring_ + row, i);
        old_v[i] = Load(v_ring_ + row, i);
      }
      Insert(t - ring_rows(), old_k, old_v);
    }
    for (int i = 0; i < kVectors; ++i) {
      hn::StoreU(k[i], d_, k_ring_ + row + i * lanes_);
      hn::StoreU(v[i], d_, v_ring_ + row + i * lanes_);
    }
  }

  HWY_INLINE void Insert(int64_t token, const V* k, const V* v) {
    const int64_t block = BlockOf(token);
    Prefix<kVectors, D>& prefix = prefix_[block & 1];
    if (params_.prefix_block > 0 && token == block * params_.prefix_block) prefix.Reset(d_);
    prefix.Insert(d_, k, v);
  }

  const D d_;
  const int64_t lanes_;
  const AftParams& params_;
  const AftStateLayout layout_;
  const Row& row_;
  Prefix<kVectors, D> prefix_[2];
  float* k_ring_;
  float* v_ring_;
  int64_t ring_stride_;
  V before_max_[kVectors];
  V block_max_[kVectors];
};

// Runs tiles of kVectors vectors while they fit between *channel and end.
template <int kVectors, class D>
HWY_INLINE void RunTiles(D d, const AftParams& params, const Row& first, float* scratch,
                         int64_t* channel, int64_t end) {
  const int64_t width = kVectors * static_cast<int64_t>(hn::Lanes(d));
  for (; *channel + width <= end; *channel += width) {
    Row row = first;
    row.q += *channel;
    row.y += *channel;
    row.state += *channel;
    Tile<kVectors, D>(d, params, row, scratch).Run();
  }
}

void Forward(const AftParams& params, const RaggedBatch& batch, const float* qkv,
             int64_t qkv_stride, float* state, int64_t slot_stride, float* y, int64_t y_stride,
             float* scratch, int64_t begin, int64_t end) {
  const int64_t tiles = AftUnits(params, 1);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t r = unit / tiles;
    int64_t channel = unit % tiles * kAftTile;
    const int64_t channel_end = std::min(channel + kAftTile, params.hid);
    const int64_t token = batch.offset[r];
    const int64_t length = batch.offset[r + 1] - token;
    if (batch.slot[r] < 0) {
      for (int64_t i = token; i < token + length; ++i) {
        std::fill(y + i * y_stride + channel, y + i * y_stride + channel_end, 0.0F);
      }
      continue;
    }
    Row row = {qkv + token * qkv_stride,
               qkv_stride,
               y + token * y_stride,
               y_stride,
               state + batch.slot[r] * slot_stride,
               batch.position[r],
               length,
               0};
    if (length == 1 && unit + 1 < end) {
      const int32_t next_slot = std::max(batch.slot[(unit + 1) / tiles], 0);
      row.next_unit =
          (next_slot - batch.slot[r]) * slot_stride + (unit + 1) % tiles * kAftTile - channel;
    }
    // Four vectors at once keep four independent chains in flight; the rest in narrower steps. A
    // channel's result does not depend on which of these it falls into.
    const hn::ScalableTag<float> d;
    RunTiles<4>(d, params, row, scratch, &channel, channel_end);
    RunTiles<1>(d, params, row, scratch, &channel, channel_end);
    RunTiles<1>(hn::CappedTag<float, 4>(), params, row, scratch, &channel, channel_end);
    RunTiles<1>(hn::CappedTag<float, 1>(), params, row, scratch, &channel, channel_end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

HWY_EXPORT(Forward);

void AftForward(const AftParams& params, const RaggedBatch& batch, const float* qkv,
                int64_t qkv_stride, float* state, int64_t slot_stride, float* y, int64_t y_stride,
                float* scratch, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(Forward)
  (params, batch, qkv, qkv_stride, state, slot_stride, y, y_stride, scratch, begin, end);
}

}  // namespace aft::kernels
#endif
