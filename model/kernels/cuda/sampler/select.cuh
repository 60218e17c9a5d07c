#pragma once

#include <cstdint>

#include "model/kernels/cuda/sampler/row.cuh"

// Finds the tokens that the limits of SamplingNumbers keep: those up to a last key. Radix selection
// finds that key: the keys are counted, or their probabilities summed, in bins, and the bin in
// which the target is reached is divided again. Sums are of integers, so that they do not depend on
// the order of threads. As soon as few enough tokens are left they are copied to a list in shared
// memory. The row itself is usually read twice.
namespace aft::kernels::cuda::sampler {

inline constexpr int kBinBits = 11;
inline constexpr int kBins = 1 << kBinBits;
inline constexpr int kMaxListed = 4096;

// A block's shared memory.
struct Space {
  __host__ __device__ Space(SharedLayout& shared, int32_t vocab_size)
      : mass_low(shared.Take<unsigned>(kBins)),
        mass_high(shared.Take<unsigned>(kBins)),
        tokens(shared.Take<int>(kBins)),
        keys(shared.Take<Key>(kMaxWarps)),
        numbers(shared.Take<double>(kMaxWarps)),
        counts(shared.Take<int>(kMaxWarps)),
        drawn(shared.Take<Drawn>(kMaxWarps)),
        found(shared.Take<int>(2)),
        found_mass(shared.Take<Key>(1)),
        top(shared.Take<Key>(kMaxTopLogprobs)),
        taken(shared.Take<int>(1)),
        capacity(vocab_size < kMaxListed ? vocab_size : kMaxListed),
        list(shared.Take<Key>(capacity)) {}

  // For each bin, the sum of masses in two halves, and the number of tokens.
  unsigned* mass_low;
  unsigned* mass_high;
  int* tokens;
  Key* keys;  // used by Reduce and SumBefore
  double* numbers;
  int* counts;
  Drawn* drawn;
  int* found;
  Key* found_mass;
  Key* top;
  int* taken;
  int capacity;
  Key* list;  // the last one, so that the places of all others are constants

  __device__ void ClearBin(int bin) const {
    tokens[bin] = 0;
    mass_low[bin] = 0;
    mass_high[bin] = 0;
  }
  // Adds 32 bits at a time, because shared memory adds no more at once. The order of the adding
  // threads changes neither half.
  __device__ void AddMass(int bin, Key mass) const {
    const unsigned low = static_cast<unsigned>(mass & 0xFFFFFFFFU);
    const unsigned before = atomicAdd(&mass_low[bin], low);
    const unsigned high = static_cast<unsigned>(mass >> 32) + (before + low < low ? 1U : 0U);
    if (high != 0) atomicAdd(&mass_high[bin], high);
  }
  __device__ Key MassOfBin(int bin) const { return Key{mass_high[bin]} << 32 | mass_low[bin]; }
};

// The tokens of a row that are still kept.
template <bool kAligned>
struct Candidates {
  Row<kAligned> row;
  Best best;
  Key last;              // finite logits with keys up to this one are kept
  int32_t listed = -1;   // >= 0: the number of keys in Space::list, which has all that are kept
  double inverse_t = 0;  // log2(e) / temperature; used for mass alone

  // Calls use(key) for each kept token.
  template <typename Use>
  __device__ void ForEach(const Space& space, Use use) const {
    if (listed >= 0) {
      for (int i = static_cast<int>(threadIdx.x); i < listed; i += static_cast<int>(blockDim.x)) {
        if (space.list[i] <= last) use(space.list[i]);
      }
      return;
    }
    row.ForEachFour([&](int32_t id, const Four& four) {
      for (int i = 0; i < 4; ++i) {
        if (!(four.logit[i] > MinusInfinity())) continue;
        const Key key = KeyOf(best, four.logit[i], id + i);
        if (key <= last) use(key);
      }
    });
  }

  // e^((logit - best) / temperature) in units of 2^-40, to 3e-7 of itself.
  __device__ Key MassOf(Key key) const {
    constexpr int kUnits = 40;
    const double logit = static_cast<double>(LogitOf(best, key));
    const double exponent = (logit - static_cast<double>(best.logit())) * inverse_t;
    if (exponent < -kUnits - 1) return 0;
    const double whole = rint(exponent);
    const float part = Exp2(static_cast<float>(exponent - whole));  // 0.7 to 1.5
    const Key bits = static_cast<Key>(part * 0x1p24F);
    const int shift = kUnits - 24 + static_cast<int>(whole);
    return shift >= 0 ? bits << shift : (bits + (Key{1} << (-shift - 1))) >> -shift;
  }

  // Drops all keys above `key`.
  __device__ void KeepUpTo(Key key) { last = min(last, key); }
};

// The bins of the first division: 64 for each power of two of the distance from the best logit,
// because the tokens that matter are near it.
__device__ inline int FirstBin(Key key) {
  const uint32_t v = static_cast<uint32_t>(key >> 32) + 1U;
  const int octave = 31 - __clz(static_cast<int>(v));
  const uint32_t leading = octave >= 6 ? v >> (octave - 6) : v << (6 - octave);
  return octave * 64 + static_cast<int>(leading & 63U);
}
// The keys of a bin are the 2^(returned number of bits) keys from *base on.
__device__ inline int FirstBinKeys(int bin, Key* base) {
  const int octave = bin / 64;
  const uint32_t leading = static_cast<uint32_t>(64 + bin % 64);
  const uint32_t v = octave >= 6 ? leading << (octave - 6) : leading >> (6 - octave);
  *base = Key{v - 1U} << 32;
  return 32 + (octave >= 6 ? octave - 6 : 0);
}

// The target is a number of tokens (mass unused), or a part of all mass.
struct Target {
  int32_t tokens;
  float part;  // part of the mass; 0: `tokens` is the target
};

struct Division {
  int bin = -1;         // bin in which the target is reached; -1: in none
  int tokens = 0;       // in the bin
  int above = 0;        // before the bin, including those before all bins
  Key mass_above = 0;   // likewise, their mass
  Key mass_wanted = 0;  // mass at which the target is reached
};

// Finds the bin of the filled Space in which the target is reached, counted on from the sums in
// `before`. In the first division mass_wanted is 0, and is set to the target's part of the sum.
__device__ inline Division FindBin(const Space& space, const Target& target,
                                   const Division& before) {
  const bool by_mass = target.part > 0.0F;
  const int bins = kBins / static_cast<int>(blockDim.x);
  const int first = static_cast<int>(threadIdx.x) * bins;
  int tokens = 0;
  Key mass = 0;
  for (int bin = first; bin < first + bins; ++bin) {
    tokens += space.tokens[bin];
    mass += space.MassOfBin(bin);
  }
  Division division = before;
  division.bin = -1;
  int all_tokens = 0;
  tokens = before.above + SumBefore(tokens, space.counts, &all_tokens);
  if (by_mass) {
    Key all = 0;
    mass = before.mass_above + SumBefore(mass, space.keys, &all);
    if (before.mass_wanted == 0) {
      const double wanted = ceil(static_cast<double>(all) * static_cast<double>(target.part));
      division.mass_wanted = max(Key{1}, min(all, static_cast<Key>(wanted)));
    }
  }
  if (threadIdx.x == 0) space.found[0] = -1;
  __syncthreads();
  const auto reached = [&] {
    return by_mass ? mass >= division.mass_wanted : tokens >= target.tokens;
  };
  bool done = reached();
  for (int bin = first; bin < first + bins && !done; ++bin) {
    const int above = tokens;
    const Key mass_above = mass;
    tokens += space.tokens[bin];
    mass += space.MassOfBin(bin);
    done = reached();
    if (!done) continue;
    // Only one thread comes here: the target is reached within its bins.
    space.found[0] = bin;
    space.found[1] = above;
    *space.found_mass = mass_above;
  }
  __syncthreads();
  if (space.found[0] < 0) return division;
  division.bin = space.found[0];
  division.above = space.found[1];
  division.mass_above = *space.found_mass;
  division.tokens = space.tokens[division.bin];
  __syncthreads();
  return division;
}

// Copies the kept keys to the list. REQUIRES: there are at most Space::capacity of them.
template <bool kAligned>
__device__ void List(const Space& space, Candidates<kAligned>& kept) {
  if (threadIdx.x == 0) *space.taken = 0;
  __syncthreads();
  kept.ForEach(space, [&](Key key) { space.list[atomicAdd(space.taken, 1)] = key; });
  __syncthreads();
  kept.listed = *space.taken;
}

// Keeps the fewest best tokens that reach the target.
template <bool kAligned>
__device__ void Keep(const Space& space, const Target& target, Candidates<kAligned>& kept) {
  const bool by_mass = target.part > 0.0F;
  Division division;
  Key base = 0;
  int bits = 64;  // the last key to keep is among base .. base + 2^bits - 1
  do {
    const bool first = bits == 64;
    const int shift = bits > kBinBits ? bits - kBinBits : 0;
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins;
         bin += static_cast<int>(blockDim.x)) {
      space.ClearBin(bin);
    }
    __syncthreads();
    kept.ForEach(space, [&](Key key) {
      if (key < base) return;
      const int bin = first ? FirstBin(key) : static_cast<int>((key - base) >> shift);
      atomicAdd(&space.tokens[bin], 1);
      if (by_mass) space.AddMass(bin, kept.MassOf(key));
    });
    __syncthreads();
    division = FindBin(space, target, division);
    if (division.bin < 0) return;  // all tokens together do not reach the target
    if (first) {
      bits = FirstBinKeys(division.bin, &base);
    } else {
      base += static_cast<Key>(division.bin) << shift;
      bits = shift;
    }
    kept.KeepUpTo(base + (Key{1} << bits) - 1);
    const int left = division.above + division.tokens;
    if (division.tokens == 1 || (!by_mass && left == target.tokens)) return;
    if (kept.listed < 0 && left <= space.capacity) List(space, kept);
  } while (bits > 0);
}

}  // namespace aft::kernels::cuda::sampler
