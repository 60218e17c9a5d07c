#pragma once

// A kernel includes this file in place of hwy/highway.h. Highway compiles here for one instruction
// set per object file. CMake compiles every kernel once for each set of AFT_KERNEL_TARGETS, whose
// name is then AFT_KERNEL_TARGET, and once for the portable baseline. The baseline's object also
// chooses the set at run time:
//
//   #if AFT_DISPATCH
//   AFT_EXPORT(Kernel);  // then HWY_DYNAMIC_DISPATCH(Kernel)(arguments)
//   #endif
//
// So one binary runs on any x86-64, and no flag such as -march=native is needed. On 64-bit ARM the
// baseline is NEON, and there are no other sets. With
// AFT_KERNEL_TARGETS=NATIVE there is one object per kernel, for the set AFT_KERNEL_NATIVE alone: it
// compiles faster, and runs only on processors with that set. Kernels need external linkage. Names
// that several files define in aft::kernels::HWY_NAMESPACE must differ.

#ifdef AFT_KERNEL_TARGET
#define AFT_DISPATCH 0
#define HWY_BASELINE_TARGETS AFT_KERNEL_TARGET
#define HWY_COMPILE_ONLY_STATIC
#elif defined(AFT_KERNEL_NATIVE)
#define AFT_DISPATCH 1
#define HWY_BASELINE_TARGETS AFT_KERNEL_NATIVE
#define HWY_COMPILE_ONLY_STATIC
#else
#define AFT_DISPATCH 1
#define HWY_DISABLED_TARGETS (~(AFT_KERNEL_TARGETS | HWY_EMU128 | HWY_SCALAR | HWY_NEON))
#endif

// Without this, Highway asks the compiler for AES too, with pragmas. Not every ARM has AES, and GCC
// 12 cannot inline functions with a pragma into the implicit constructors of a type, which have
// none.
#ifdef __aarch64__
#define TOOLCHAIN_MISS_SYS_AUXV_H
#endif
#include "hwy/highway.h"

// Whether the set has 32 vector registers. The others have 16.
#define AFT_MANY_REGISTERS (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON)

// Declares the variant of a kernel that another object file defines, for the dispatch table.
#define AFT_DECLARE(set, kernel)          \
  namespace set {                         \
  decltype(HWY_NAMESPACE::kernel) kernel; \
  }
#if HWY_TARGETS & HWY_AVX3
#define AFT_DECLARE_AVX3(kernel) AFT_DECLARE(N_AVX3, kernel)
#else
#define AFT_DECLARE_AVX3(kernel)
#endif
#if HWY_TARGETS & HWY_AVX2
#define AFT_DECLARE_AVX2(kernel) AFT_DECLARE(N_AVX2, kernel)
#else
#define AFT_DECLARE_AVX2(kernel)
#endif
#if HWY_TARGETS & HWY_SSE4
#define AFT_DECLARE_SSE4(kernel) AFT_DECLARE(N_SSE4, kernel)
#else
#define AFT_DECLARE_SSE4(kernel)
#endif
#define AFT_EXPORT(kernel) \
  AFT_DECLARE_AVX3(kernel) AFT_DECLARE_AVX2(kernel) AFT_DECLARE_SSE4(kernel) HWY_EXPORT(kernel)

namespace aft::kernels {

// Requests the cache line at `p` for a cache. The first cache waits for few lines at a time: a core
// that has requested more of them stops until some have arrived. So what comes from memory is
// requested for the second one. It is always inlined because GCC drops calls of functions that only
// prefetch.
constexpr int kFirstCache = 3;
constexpr int kSecondCache = 2;
template <int kCache>
HWY_INLINE void FetchLine(const void* p) {
  __builtin_prefetch(p, 0, kCache);
}

}  // namespace aft::kernels
