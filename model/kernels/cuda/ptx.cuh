#pragma once

#include <cstdint>

#include "model/kernels/cuda/launch.cuh"

// All inline PTX is in this file. Each function has a version for the CPU (AFT_CUDA_ON_CPU) that
// rounds as the hardware does. Source: PTX ISA 8.8.
namespace aft::kernels::cuda {

// ---- 16-bit storage
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(int8_t x) { return static_cast<float>(x); }
__device__ inline float ToFloat(Bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
__device__ inline float ToFloat(Fp16 x) {
#ifdef AFT_CUDA_ON_CPU
  return static_cast<float>(std::bit_cast<_Float16>(x.bits));
#else
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#endif
}

// Rounds to nearest even.
template <typename T>
__device__ inline T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline Bf16 FromFloat<Bf16>(float x) {
#ifdef AFT_CUDA_ON_CPU
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return {0x7FFF};
  return {static_cast<uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16)};
#else
  Bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#endif
}
template <>
__device__ inline Fp16 FromFloat<Fp16>(float x) {
#ifdef AFT_CUDA_ON_CPU
  if (x != x) return {0x7FFF};
  return {std::bit_cast<uint16_t>(static_cast<_Float16>(x))};
#else
  Fp16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#endif
}

// ---- Special functions

// 2^x, to 2 ulp; subnormal results are 0.
__device__ inline float Exp2(float x) {
#ifdef AFT_CUDA_ON_CPU
  const float y = std::exp2(x);
  return y < 0x1p-126F ? 0.0F : y;
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// e^x for x <= 88. Subtract exponents before calling.
__device__ inline float Exp(float x) { return Exp2(x * 1.44269504F); }

// 1 / x, to 1 ulp. Subnormal inputs and results count as 0.
__device__ inline float Reciprocal(float x) {
#ifdef AFT_CUDA_ON_CPU
  const float y = 1.0F / (std::abs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x);
  return std::abs(y) < 0x1p-126F ? std::copysign(0.0F, y) : y;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// 1 / (1 + e^-x). An overflow of the exponential is the limit 0.
__device__ inline float Sigmoid(float x) { return Reciprocal(1.0F + Exp(-x)); }

// tanh, to 2e-7. An overflow of the exponential is the limit 1.
__device__ inline float Tanh(float x) {
  const float e = Exp2((x + x) * 1.44269504F);
  return 1.0F - 2.0F * Reciprocal(e + 1.0F);
}

// ---- Loads

// The 16 bytes at an aligned address; zeros, without a read, when not valid. There is no branch, so
// several of these may be in flight. A __syncwarp() after them keeps ptxas from moving each load to
// where its result is used.
__device__ inline uint4 LoadOrZero(const void* from, bool valid) {
#ifdef AFT_CUDA_ON_CPU
  return valid ? *static_cast<const uint4*>(from) : uint4{};
#else
  uint4 x;
  asm volatile(
      "{\n"
      ".reg .pred valid;\n"
      "setp.ne.b32 valid, %5, 0;\n"
      "mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
      "@valid ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=&r"(x.x), "=&r"(x.y), "=&r"(x.z), "=&r"(x.w)
      : "l"(from), "r"(static_cast<int>(valid))
      : "memory");
  return x;
#endif
}

// ---- Asynchronous copies to shared memory (sm_80)

// Copies 16 bytes; both addresses are aligned to 16. valid = false writes zeros and reads nothing.
__device__ inline void CopyAsync16(void* to_shared, const void* from, bool valid = true) {
#ifdef AFT_CUDA_ON_CPU
  cuda_on_cpu::CopyAsync(to_shared, from, valid ? 16 : 0, valid ? 0 : 16);
#else
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
#endif
}
__device__ inline void CommitCopies() {
#ifdef AFT_CUDA_ON_CPU
  cuda_on_cpu::CommitCopies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for all of this thread's own copies except the last kPending groups. A barrier must follow
// before other threads read them.
template <int kPending>
__device__ inline void WaitForCopies() {
#ifdef AFT_CUDA_ON_CPU
  cuda_on_cpu::WaitForCopies(kPending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// ---- Matrix products of a warp (sm_80)
//
// With g = l / 4 and t = l % 4, lane l holds these elements of the fragments:
//
//   TF32  A [16, 8]: a[0] (g, t), a[1] (g + 8, t), a[2] (g, t + 4), a[3] (g + 8, t + 4)
//         B [8, 8]:  b[0] (t, g), b[1] (t + 4, g)                          row k, column n
//   bf16  A [16, 16], two neighbours in k in a register, the lower k in the lower half:
//                    a[0] (g, 2t), a[1] (g + 8, 2t), a[2] (g, 2t + 8), a[3] (g + 8, 2t + 8)
//         B [16, 8]: b[0] (2t, g), b[1] (2t + 8, g)
//   int8  A [16, 32], four neighbours in k in a register, the lowest k in the lowest byte:
//                    a[0] (g, 4t), a[1] (g + 8, 4t), a[2] (g, 4t + 16), a[3] (g + 8, 4t + 16)
//         B [32, 8]: b[0] (4t, g), b[1] (4t + 16, g)
//   C [16, 8]:       c[0] (g, 2t), c[1] (g, 2t + 1), c[2] (g + 8, 2t), c[3] (g + 8, 2t + 1)

// Rounds to TF32's 10 bits of mantissa, to nearest, ties away from zero.
__device__ inline uint32_t ToTf32(float x) {
#ifdef AFT_CUDA_ON_CPU
  if (x != x) return 0x7FFFFFFF;
  return (std::bit_cast<uint32_t>(x) + 0x1000U) & ~0x1FFFU;
#else
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
#endif
}

// Two floats as bf16, rounded to nearest even; `low` in the lower half.
__device__ inline uint32_t PackBf16(float low, float high) {
#ifdef AFT_CUDA_ON_CPU
  return FromFloat<Bf16>(low).bits | static_cast<uint32_t>(FromFloat<Bf16>(high).bits) << 16;
#else
  uint32_t y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
#endif
}

#ifdef AFT_CUDA_ON_CPU
struct MmaOperands {
  uint32_t a[4];
  uint32_t b[2];
};

// `product` multiplies a register of A by one of B: the one, two or four elements in them.
template <typename Sum, typename Product>
AFT_NOT_INSTRUMENTED void MmaOnCpu(Sum (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                   Product product) {
  const cuda_on_cpu::FromWarp<MmaOperands> all(
      0xFFFFFFFFU, {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, cuda_on_cpu::Site::current());
  const unsigned g = cuda_on_cpu::Lane() / 4;
  const unsigned t = cuda_on_cpu::Lane() % 4;
  for (unsigned quarter = 0; quarter < 4; ++quarter) {
    const MmaOperands& row = all.At(g * 4 + quarter);
    for (unsigned i = 0; i < 2; ++i) {
      const MmaOperands& column = all.At((2 * t + i) * 4 + quarter);
      for (unsigned k = 0; k < 2; ++k) {
        c[i] += product(row.a[2 * k], column.b[k]);
        c[2 + i] += product(row.a[2 * k + 1], column.b[k]);
      }
    }
  }
}
#endif

// c += A B with operands made by ToTf32. All 32 lanes must call it.
__device__ inline void MmaTf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef AFT_CUDA_ON_CPU
  MmaOnCpu(c, a, b, [](uint32_t x, uint32_t y) AFT_PART_OF_NOT_INSTRUMENTED {
    return __builtin_bit_cast(float, x & ~0x1FFFU) * __builtin_bit_cast(float, y & ~0x1FFFU);
  });
#else
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// c += A B with operands made by PackBf16. All 32 lanes must call it.
__device__ inline void MmaBf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef AFT_CUDA_ON_CPU
  MmaOnCpu(c, a, b, [](uint32_t x, uint32_t y) AFT_PART_OF_NOT_INSTRUMENTED {
    return __builtin_bit_cast(float, x << 16) * __builtin_bit_cast(float, y << 16) +
           __builtin_bit_cast(float, x & 0xFFFF0000U) * __builtin_bit_cast(float, y & 0xFFFF0000U);
  });
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// c += A B for integers. All 32 lanes must call it.
__device__ inline void MmaInt8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef AFT_CUDA_ON_CPU
  MmaOnCpu(c, a, b, [](uint32_t x, uint32_t y) AFT_PART_OF_NOT_INSTRUMENTED {
    int sum = 0;
    for (int i = 0; i < 32; i += 8) {
      sum += static_cast<int8_t>(x >> i & 0xFFU) * static_cast<int8_t>(y >> i & 0xFFU);
    }
    return sum;
  });
#else
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Loads four 8 x 8 matrices of 16-bit numbers from shared memory as operands of MmaBf16, or of
// MmaInt8, for which such a number is two neighbours. Lane l passes the 16-byte row l % 8 of matrix
// l / 8. With g and t as above, r[i] receives elements (g, 2t) and (g, 2t + 1) of matrix i, the
// lower column in the lower half.
__device__ inline void LoadMatrices(uint32_t (&r)[4], const void* row) {
#ifdef AFT_CUDA_ON_CPU
  struct alignas(16) MatrixRow {
    uint16_t at[8];
  };
  const cuda_on_cpu::FromWarp<MatrixRow> rows(0xFFFFFFFFU, *static_cast<const MatrixRow*>(row),
                                              cuda_on_cpu::Site::current());
  const unsigned g = cuda_on_cpu::Lane() / 4;
  const unsigned t = cuda_on_cpu::Lane() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const MatrixRow found = rows[i * 8 + g];
    r[i] = found.at[2 * t] | static_cast<uint32_t>(found.at[2 * t + 1]) << 16;
  }
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
#endif
}

// ---- Registers
// Returns x in such a way that the compiler knows nothing about the result. What a rare path
// derives from it is then computed on that path, instead of waiting in registers.
__device__ inline int Opaque(int x) {
#ifndef AFT_CUDA_ON_CPU
  asm volatile("" : "+r"(x));
#endif
  return x;
}

}  // namespace aft::kernels::cuda
