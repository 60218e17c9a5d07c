#include "model/kernels/logits.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using LogitTag = hn::CappedTag<float, 16>;
using LogitVec = hn::Vec<LogitTag>;

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// out[i] = of_vector(v, i) for all logits. The last vector is filled up with -inf.
template <class OfVector>
HWY_INLINE void StoreEach(const float* logits, int64_t count, float* out, OfVector of_vector) {
  const LogitTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(of_vector(hn::LoadU(d, logits + i), i), d, out + i);
  }
  if (i == count) return;
  HWY_ALIGN float part[16];
  std::fill_n(std::copy(logits + i, logits + count, part), lanes - (count - i), kNegativeInfinity);
  hn::Store(of_vector(hn::Load(d, part), i), d, part);
  std::copy_n(part, count - i, out + i);
}

float Finite(const float* logits, int64_t count, float* values) {
  const LogitTag d;
  const LogitVec nothing = hn::Set(d, kNegativeInfinity);
  LogitVec highest = nothing;
  StoreEach(logits, count, values, [&](LogitVec logit, int64_t /*i*/) HWY_ATTR {
    const LogitVec known = hn::IfThenElse(hn::IsNaN(logit), nothing, logit);
    const LogitVec finite = hn::Add(hn::Min(known, hn::Set(d, std::numeric_limits<float>::max())),
                                    hn::Zero(d));  // -0 + 0 = 0
    highest = hn::Max(highest, finite);
    return finite;
  });
  return hn::GetLane(hn::MaxOfLanes(d, highest));
}

int64_t Next(const float* values, int64_t first, int64_t count, float least) {
  const LogitTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (; first + lanes <= count; first += lanes) {
    const intptr_t lane =
        hn::FindFirstTrue(d, hn::Ge(hn::LoadU(d, values + first), hn::Set(d, least)));
    if (lane >= 0) return first + lane;
  }
  while (first < count && !(values[first] >= least)) ++first;
  return first;
}

using WordTag = hn::CappedTag<uint64_t, 8>;
using WordVec = hn::Vec<WordTag>;

// The lower half of each lane, times b.
HWY_INLINE WordVec Product(WordVec a, uint32_t b) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(WordTag(), (hn::GetLane(a) & 0xFFFFFFFFU) * b);
#else
  const hn::Repartition<uint32_t, WordTag> halves;
  return hn::MulEven(hn::BitCast(halves, a), hn::Set(halves, b));
#endif
}

// The number of vectors of blocks that Philox computes at once. Several are in flight because every
// round depends on the one before.
constexpr int kAtOnce = 4;
constexpr int64_t kMostBlocks = kAtOnce * 8;

// words[4 i .. 4 i + 3] = Philox4x32-10 (sampling/philox.h) of block first + i, for 0 <= i < blocks
// and up to the next multiple of kMostBlocks. A lane is a block. The upper halves of its words are
// ignored until the end.
HWY_INLINE void Philox(const GumbelDraw& draw, int64_t first, int64_t blocks, uint32_t* words) {
  const WordTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const WordVec lower_half = hn::Set(d, 0xFFFFFFFFU);
  for (int64_t block = 0; block < blocks; block += kAtOnce * lanes) {
    WordVec c0[kAtOnce];
    WordVec c1[kAtOnce];
    WordVec c2[kAtOnce];
    WordVec c3[kAtOnce];
    for (int i = 0; i < kAtOnce; ++i) {
      c0[i] = hn::Set(d, draw.output_index);
      c1[i] = hn::Zero(d);
      c2[i] = hn::Iota(d, static_cast<uint64_t>(first + block + i * lanes));
      c3[i] = hn::Set(d, draw.output_index >> 32);
    }
    auto key0 = static_cast<uint32_t>(draw.seed);
    auto key1 = static_cast<uint32_t>(draw.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < kAtOnce; ++i) {
        const WordVec product0 = Product(c0[i], 0xD2511F53);
        const WordVec product1 = Product(c2[i], 0xCD9E8D57);
        c0[i] = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1[i]), hn::Set(d, key0));
        c1[i] = product1;
        c2[i] = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3[i]), hn::Set(d, key1));
        c3[i] = product0;
      }
      key0 += 0x9E3779B9;
      key1 += 0xBB67AE85;
    }
    for (int i = 0; i < kAtOnce; ++i) {
      HWY_ALIGN uint64_t pairs[2 * 8];
      hn::StoreInterleaved2(hn::Or(hn::And(c0[i], lower_half), hn::ShiftLeft<32>(c1[i])),
                            hn::Or(hn::And(c2[i], lower_half), hn::ShiftLeft<32>(c3[i])), d, pairs);
      std::memcpy(words + 4 * (block + i * lanes), pairs,
                  static_cast<size_t>(lanes) * 4 * sizeof(*words));
    }
  }
}

// An upper bound of g = -log(-log(u)), u = (word + 0.5) / 2^32. It follows in three steps: g <=
// -log(1 - u), because -log(u) >= 1 - u; 1 - u > n / 2^31 with n = ~word / 2; and log2(n) is at
// least the bits of n as a float, read as a fixed-point number with 23 fractional bits, less the
// exponent bias 127.
HWY_INLINE LogitVec GumbelBound(LogitTag d, hn::Vec<hn::RebindToUnsigned<LogitTag>> word) {
  const hn::RebindToUnsigned<LogitTag> du;
  const hn::RebindToSigned<LogitTag> di;
  const LogitVec n =
      hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<1>(hn::Xor(word, hn::Set(du, ~0U)))));
  const LogitVec log2_n = hn::ConvertTo(d, hn::BitCast(di, n));
  constexpr float kLn2 = 0.693147181F;
  return hn::NegMulAdd(log2_n, hn::Set(d, kLn2 * 0x1p-23F), hn::Set(d, kLn2 * (31 + 127)));
}

float Bounds(const GumbelDraw& draw, const float* logits, int64_t count, float* bounds) {
  constexpr int64_t kChunk = 8 * 4 * kMostBlocks;
  const LogitTag d;
  const hn::RebindToUnsigned<LogitTag> du;
  const LogitVec nothing = hn::Set(d, kNegativeInfinity);
  LogitVec largest = nothing;
  for (int64_t first = 0; first < count; first += kChunk) {
    HWY_ALIGN uint32_t words[kChunk];
    const int64_t size = std::min(kChunk, count - first);
    Philox(draw, first / 4, (size + 3) / 4, words);
    StoreEach(logits + first, size, bounds + first, [&](LogitVec logit, int64_t i) HWY_ATTR {
      const LogitVec scaled =
          hn::Div(hn::Sub(logit, hn::Set(d, draw.highest)), hn::Set(d, draw.temperature));
      const LogitVec bound = hn::Add(scaled, GumbelBound(d, hn::LoadU(du, words + i)));
      const LogitVec kept = hn::IfThenElse(hn::Lt(logit, hn::Set(d, draw.lowest)), nothing, bound);
      largest = hn::Max(largest, kept);
      return kept;
    });
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(Finite);
AFT_EXPORT(Next);
AFT_EXPORT(Bounds);

float FiniteLogits(const float* logits, int64_t count, float* values) {
  return HWY_DYNAMIC_DISPATCH(Finite)(logits, count, values);
}

int64_t NextAtLeast(const float* values, int64_t first, int64_t count, float least) {
  return HWY_DYNAMIC_DISPATCH(Next)(values, first, count, least);
}

float GumbelBounds(const GumbelDraw& draw, const float* logits, int64_t count, float* bounds) {
  return HWY_DYNAMIC_DISPATCH(Bounds)(draw, logits, count, bounds);
}

}  // namespace aft::kernels
#endif
