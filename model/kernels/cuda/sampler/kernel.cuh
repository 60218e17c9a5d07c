#pragma once

#include <cmath>
#include <cstdint>

#include "model/kernels/cuda/sampler/sampler.h"
#include "model/kernels/cuda/sampler/select.cuh"
#include "model/sampling/philox.h"

// A block samples or scores one row. model/sampling/sampler.cc does the same on the CPU.
namespace aft::kernels::cuda::sampler {

__device__ inline double Gumbel(uint32_t word) {
  const double uniform = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -log(-log(uniform));
}

// An upper bound of Gumbel(word): -log(u) >= 1 - u, so g <= -log(1 - u), and 1 - u = (~word + 0.5)
// / 2^32.
__device__ inline float GumbelBound(uint32_t word) {
  constexpr float kLn2RoundedUp = 0.693148F;
  return static_cast<float>(__clz(static_cast<int>(~word)) + 1) * kLn2RoundedUp;
}
inline constexpr float kLargestGumbel = 22.9F;

// The random words of one output token. Four neighbouring ids share a block of them.
struct Words {
  uint32_t word[4];

  __device__ uint32_t of(int32_t id) const {  // registers cannot be indexed at run time
    const uint32_t low = id % 2 == 0 ? word[0] : word[1];
    const uint32_t high = id % 2 == 0 ? word[2] : word[3];
    return id % 4 < 2 ? low : high;
  }
};
__device__ inline Words WordsOf(const SlotSampling& params, uint64_t output_index, int32_t id) {
  const std::array<uint32_t, 4> words =
      Philox4x32({static_cast<uint32_t>(output_index), 0U, static_cast<uint32_t>(id) / 4U,
                  static_cast<uint32_t>(output_index >> 32)},
                 {static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32)});
  return {{words[0], words[1], words[2], words[3]}};
}

// One thread's part of the draw: the winner so far, and a quick test in float. The test saves the
// logarithms for most tokens, and the random numbers for whole groups of them.
class Draw {
 public:
  // Every thread begins with the best token, because its score rules out most others.
  __device__ Draw(const Best& best, float temperature, uint32_t word)
      : best_(best.logit()), temperature_(static_cast<double>(temperature)) {
    const double scaled = static_cast<double>(best_) / temperature_;
    winner_ = {scaled + Gumbel(word), best.id};
    // The scores themselves are rounded, which matters when they are large.
    const double rounding = 1e-4 + fabs(scaled) * 1e-15;
    slack_ = rounding < 1e30 ? static_cast<float>(rounding) : -MinusInfinity();
    // It must not exceed 1 / temperature, so that (logit - best) times it is not too low.
    const double inverse = (1.0 - 1e-6) / temperature_;
    inverse_ = inverse < 1e30 ? static_cast<float>(inverse) : 1e30F;
    SetCut(scaled);
  }

  // Returns false if no token with this logit can win with a Gumbel number up to `bound`. The test
  // is written so that it is true for NaN.
  __device__ bool MayWin(float logit, float bound) const {
    return !((logit - best_) * inverse_ + bound < cut_);
  }

  __device__ void Consider(float logit, int32_t id, uint32_t word) {
    if (!MayWin(logit, GumbelBound(word))) return;
    const double scaled = static_cast<double>(logit) / temperature_;
    const Drawn drawn = {scaled + Gumbel(word), id};
    if (winner_.id == Winner(winner_, drawn).id) return;
    winner_ = drawn;
    SetCut(static_cast<double>(best_) / temperature_);
  }

  __device__ const Drawn& winner() const { return winner_; }

 private:
  __device__ void SetCut(double best_scaled) {
    cut_ = static_cast<float>(winner_.score - best_scaled) - slack_;
  }

  float best_;
  double temperature_;
  Drawn winner_;
  float inverse_;
  float slack_;
  float cut_;  // least (logit - best) / temperature + Gumbel that may win
};

// The lowest logit that min-p keeps.
__device__ inline float LowestOfMinP(const Best& best, double temperature, float min_p) {
  const double lowest =
      max(static_cast<double>(best.logit()) + temperature * log(static_cast<double>(min_p)),
          -static_cast<double>(kLargest));
  const float rounded = static_cast<float>(lowest);
  return static_cast<double>(rounded) < lowest ? FromOrdered(Ordered(rounded) + 1U) : rounded;
}

template <bool kAligned>
__device__ int32_t DrawToken(const Space& space, const Row<kAligned>& row, const Best& best,
                             const SlotSampling& params) {
  const uint64_t output_index = row.output_index;
  Candidates<kAligned> kept;
  kept.row = row;
  kept.best = best;
  const auto temperature = static_cast<double>(params.temperature_last ? 1.0F : params.temperature);
  const float lowest =
      params.min_p > 0.0F ? LowestOfMinP(best, temperature, params.min_p) : -kLargest;
  kept.last = Key{best.ordered - Ordered(lowest)} << 32 | 0xFFFFFFFFU;
  kept.inverse_t = 1.4426950408889634 / temperature;
  const bool limit_k = params.top_k > 0 && params.top_k < row.vocab_size;
  const bool limit_p = params.top_p < 1.0F;
#pragma unroll 1
  for (int cut = 0; cut < 2; ++cut) {
    const bool by_k = (cut == 0) != params.temperature_last;
    if (!(by_k ? limit_k : limit_p)) continue;
    Keep(space, by_k ? Target{params.top_k, 0.0F} : Target{0, params.top_p}, kept);
  }

  Draw draw(best, params.temperature, WordsOf(params, output_index, best.id).of(best.id));
  if (kept.listed >= 0) {
    kept.ForEach(space, [&](Key key) {
      const float logit = LogitOf(best, key);
      if (!draw.MayWin(logit, kLargestGumbel)) return;
      draw.Consider(logit, IdOf(key), WordsOf(params, output_index, IdOf(key)).of(IdOf(key)));
    });
  } else {
    row.ForEachFour([&](int32_t id, const Four& four) {
      bool keep[4];
      for (int i = 0; i < 4; ++i) {
        const float logit = four.logit[i];
        keep[i] = logit > MinusInfinity() && draw.MayWin(logit, kLargestGumbel) &&
                  KeyOf(best, logit, id + i) <= kept.last;
      }
      if (!(keep[0] || keep[1] || keep[2] || keep[3])) return;
      const Words words = WordsOf(params, output_index, id);
      for (int i = 0; i < 4; ++i) {
        if (keep[i]) draw.Consider(four.logit[i], id + i, words.word[i]);
      }
    });
  }
  const auto join = [](const Drawn& a, const Drawn& b) { return Winner(a, b); };
  return Reduce(draw.winner(), space.drawn, join).id;
}

// The logarithm of the sum of the raw logits' exponentials.
template <bool kAligned>
__device__ double LogTotal(const Space& space, const Row<kAligned>& raw, const Best& best) {
  double total = 0.0;
  const float highest = best.logit();
  raw.ForEachFour([&](int32_t, const Four& four) {
    for (int i = 0; i < 4; ++i) total += static_cast<double>(Exp(four.logit[i] - highest));
  });
  total = Reduce(total, space.numbers, [](double a, double b) { return a + b; });
  return static_cast<double>(highest) + log(total);
}

// Writes the best `count` tokens of the raw logits in order; the remaining places get -1.
template <bool kAligned>
__device__ void ReportTop(const Space& space, const Row<kAligned>& raw, const Best& best,
                          double log_total, int32_t count, int32_t* top_id, float* top_logprob) {
  int32_t found = 0;
  if (count > 0) {
    Candidates<kAligned> kept;
    kept.row = raw;
    kept.best = best;
    kept.last = Key{best.ordered - Ordered(-kLargest)} << 32 | 0xFFFFFFFFU;
    Keep(space, {count, 0.0F}, kept);
    if (threadIdx.x == 0) *space.taken = 0;
    __syncthreads();
    kept.ForEach(space, [&](Key key) { space.top[atomicAdd(space.taken, 1)] = key; });
    __syncthreads();
    found = *space.taken;
  }
  const int32_t i = static_cast<int32_t>(threadIdx.x);
  if (i < found) {
    const Key key = space.top[i];
    int32_t place = 0;
    for (int32_t other = 0; other < found; ++other) place += space.top[other] < key ? 1 : 0;
    top_id[place] = IdOf(key);
    top_logprob[place] = static_cast<float>(static_cast<double>(LogitOf(best, key)) - log_total);
  } else if (i < kMaxTopLogprobs) {
    top_id[i] = kNoToken;
    top_logprob[i] = 0.0F;
  }
}

// Writes the log-probability of `id` and the alternatives.
template <bool kAligned>
__device__ void Report(const Space& space, const Row<kAligned>& raw, const Best& best, int32_t id,
                       int32_t top, const SampleOut& out, int64_t index) {
  const double log_total = LogTotal(space, raw, best);
  if (threadIdx.x == 0) {
    out.logprob[index] = static_cast<float>(static_cast<double>(raw.RawLogit(id)) - log_total);
  }
  ReportTop(space, raw, best, log_total, min(max(top, 0), kMaxTopLogprobs),
            out.top_id + index * kMaxTopLogprobs, out.top_logprob + index * kMaxTopLogprobs);
}

template <bool kAligned>
__device__ void SampleRow(const Space& space, const SamplerSlots& slots, const SampleRows& rows,
                          const float* logits, const SampleOut& out, int64_t index, int32_t slot) {
  const SlotSampling& params = slots.params[slot];
  const int32_t target = rows.target == nullptr ? kNoToken : rows.target[index];
  TokenCount* const counts = slots.counts + slot * slots.vocab_size;
  const Row<kAligned> raw = {logits, static_cast<int32_t>(slots.vocab_size)};
  Row<kAligned> row = raw;
  row.penalties = PenaltiesOf(params);
  row.output_index = rows.output_index[index];
  if (target < 0 && row.penalties.any()) row.counts = counts;
  if (target < 0 && params.rules >= 0) {
    row.rules = slots.rules + int64_t{slot} * kMaxLogitRules;
    row.rule_count = params.rules;
    row.only_these = params.only_these != 0;
    row.early = row.output_index < params.ends_from;
  }

  const Best best = FindBest(row, space.keys);
  const bool reports = best.exists() && (target >= 0 || params.top_logprobs >= 0);
  int32_t id = kNoToken;
  if (best.exists()) {
    if (target >= 0) {
      id = target;
    } else if (params.temperature > 0.0F) {
      id = DrawToken(space, row, best, params);
    } else {
      id = best.id;
    }
  }
  if (reports) {
    const Best raw_best = !row.adjusts() ? best : FindBest(raw, space.keys);
    Report(space, raw, raw_best, id, params.top_logprobs, out, index);
  } else {
    if (threadIdx.x == 0) out.logprob[index] = 0.0F;
    ReportTop(space, raw, best, 0.0, 0, out.top_id + index * kMaxTopLogprobs,
              out.top_logprob + index * kMaxTopLogprobs);
  }
  if (threadIdx.x != 0) return;
  out.id[index] = id;
  if (id < 0 || target >= 0) return;
  const bool counted = row.rules == nullptr || IsCounted(row.rules, row.rule_count, id);
  counts[id] = WithSample(counts[id], params.penalty_decay, row.output_index, counted);
  slots.last_sampled[slot] = id;
}

inline constexpr unsigned kMaxThreads = 512;

// There is one block per row. (The 1 lets the compiler use as many registers as it needs.)
template <bool kAligned>
__global__ void __launch_bounds__(kMaxThreads, 1)
    SampleKernel(SamplerSlots slots, SampleRows rows, const float* logits, int64_t stride,
                 SampleOut out) {
  SharedLayout shared(DynamicShared());
  const Space space(shared, static_cast<int32_t>(slots.vocab_size));
  const int64_t index = blockIdx.x;
  const int32_t slot = rows.slot[index];
  if (slot >= 0) {
    SampleRow<kAligned>(space, slots, rows, logits + index * stride, out, index, slot);
  }
}

// There is one thread per token. Several threads may mark the same count.
__global__ void MarkSeenKernel(SamplerSlots slots, const int32_t* tokens,
                               const int32_t* token_slots, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count || token_slots[i] < 0 || tokens[i] < 0) return;
  // A count that is not 0 has the mark already.
  atomicCAS(&slots.counts[token_slots[i] * slots.vocab_size + tokens[i]].use, 0U, kSeen);
}

// There is one thread per token of the vocabulary.
__global__ void ClearCountsKernel(SamplerSlots slots, int32_t slot) {
  const int64_t id = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (id >= slots.vocab_size) return;
  slots.counts[slot * slots.vocab_size + id] = {};
  if (id == 0) slots.last_sampled[slot] = 0;
}

}  // namespace aft::kernels::cuda::sampler
