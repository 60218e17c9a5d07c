#ifndef AFT_MODEL_KERNELS_SIMD_H_
#define AFT_MODEL_KERNELS_SIMD_H_

// Includes Highway with the instruction sets that are worth their compile time. Every kernel is
// built once per set and chosen at run time, so one binary runs on any x86-64 and no flag such as
// -march=native is needed: AVX-512 (AVX3), AVX2 with FMA, SSE4, and a portable baseline.
// The rest brings nothing for fp32: SSSE3, and AVX3_DL, which adds integer instructions only.
// SVE and RVV are off because the kernels keep arrays of vectors, which these cannot have.
//
// Include in a kernel's .cc after `#define HWY_TARGET_INCLUDE` and before foreach_target.h.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#endif  // AFT_MODEL_KERNELS_SIMD_H_
