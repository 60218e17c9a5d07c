#include "model/kernels/cuda/aft/math.cuh"
#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/ptx.cuh"
#include "tests/cuda/ptx_kernels.h"

namespace aft::kernels::cuda {
namespace {

__device__ uint32_t Apply(PtxFunction function, uint32_t bits) {
  const float x = __uint_as_float(bits);
  switch (function) {
    case PtxFunction::kToBf16:
      return FromFloat<Bf16>(x).bits;
    case PtxFunction::kToFp16:
      return FromFloat<Fp16>(x).bits;
    case PtxFunction::kToTf32:
      return ToTf32(x);
    case PtxFunction::kFromBf16:
      return __float_as_uint(ToFloat(Bf16{static_cast<uint16_t>(bits)}));
    case PtxFunction::kFromFp16:
      return __float_as_uint(ToFloat(Fp16{static_cast<uint16_t>(bits)}));
    case PtxFunction::kPackBf16:
      return PackBf16(x, -x);
    case PtxFunction::kExp2:
      return __float_as_uint(Exp2(x));
    case PtxFunction::kExp:
      return __float_as_uint(Exp(x));
    case PtxFunction::kReciprocal:
      return __float_as_uint(Reciprocal(x));
  }
  return 0;
}

constexpr unsigned kBlock = 128;

__global__ void FunctionKernel(PtxFunction function, const uint32_t* x, int64_t count,
                               uint32_t* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i < count) y[i] = Apply(function, x[i]);
}

// ptx.cuh says which thread holds which element of the fragments.
__global__ void ProductKernel(PtxProduct product, const float* a, const float* b, float* c) {
  const unsigned g = threadIdx.x / 4;
  const unsigned t = threadIdx.x % 4;
  SharedLayout layout(DynamicShared());
  uint16_t* const shared_a = layout.Take<uint16_t>(16 * 16);
  uint16_t* const shared_b = layout.Take<uint16_t>(16 * 8);
  float sums[4] = {c[g * 8 + 2 * t], c[g * 8 + 2 * t + 1], c[(g + 8) * 8 + 2 * t],
                   c[(g + 8) * 8 + 2 * t + 1]};
  uint32_t fragment_a[4];
  uint32_t fragment_b[2];
  if (product == PtxProduct::kTf32) {
    for (unsigned i = 0; i < 4; ++i) {
      fragment_a[i] = ToTf32(a[(g + i % 2 * 8) * 8 + t + i / 2 * 4]);
    }
    for (unsigned i = 0; i < 2; ++i) fragment_b[i] = ToTf32(b[(t + i * 4) * 8 + g]);
    MmaTf32(sums, fragment_a, fragment_b);
  } else if (product == PtxProduct::kBf16) {
    for (unsigned i = 0; i < 4; ++i) {
      const float* const pair = a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
      fragment_a[i] = PackBf16(pair[0], pair[1]);
    }
    for (unsigned i = 0; i < 2; ++i) {
      const float* const first = b + (2 * t + i * 8) * 8 + g;
      fragment_b[i] = PackBf16(first[0], first[8]);
    }
    MmaBf16(sums, fragment_a, fragment_b);
  } else if (product == PtxProduct::kIntegers) {
    const auto word = [](const float* first, int stride) {
      unsigned bytes = 0;
      for (int k = 0; k < 4; ++k) {
        bytes |= (static_cast<unsigned>(static_cast<int>(first[k * stride])) & 0xFFU) << 8 * k;
      }
      return bytes;
    };
    for (unsigned i = 0; i < 4; ++i) {
      fragment_a[i] = word(a + (g + i % 2 * 8) * 32 + 4 * t + i / 2 * 16, 1);
    }
    for (unsigned i = 0; i < 2; ++i) fragment_b[i] = word(b + (4 * t + i * 16) * 8 + g, 8);
    int integers[4];
    for (int i = 0; i < 4; ++i) integers[i] = static_cast<int>(sums[i]);
    MmaInt8(integers, fragment_a, fragment_b);
    for (int i = 0; i < 4; ++i) sums[i] = static_cast<float>(integers[i]);
  } else {
    for (unsigned i = threadIdx.x; i < 16 * 16; i += 32) shared_a[i] = FromFloat<Bf16>(a[i]).bits;
    for (unsigned i = threadIdx.x; i < 16 * 8; i += 32) {  // transposed
      shared_b[i % 8 * 16 + i / 8] = FromFloat<Bf16>(b[i]).bits;
    }
    __syncwarp();
    // The fragment of A has rows 0..7, rows 8..15, then the same rows of columns 8..15.
    const unsigned matrix = threadIdx.x / 8;
    const unsigned row = threadIdx.x % 8;
    LoadMatrices(fragment_a, shared_a + (row + matrix % 2 * 8) * 16 + matrix / 2 * 8);
    uint32_t halves[4];  // the two halves of B, twice
    LoadMatrices(halves, shared_b + row * 16 + matrix % 2 * 8);
    fragment_b[0] = halves[2];
    fragment_b[1] = halves[1];
    MmaBf16(sums, fragment_a, fragment_b);
  }
  c[g * 8 + 2 * t] = sums[0];
  c[g * 8 + 2 * t + 1] = sums[1];
  c[(g + 8) * 8 + 2 * t] = sums[2];
  c[(g + 8) * 8 + 2 * t + 1] = sums[3];
}

__global__ void PrefixKernel(float* sums, const float* tokens, const float* more, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= count) return;
  float* const at = sums + 3 * i;
  Prefix prefix = {at[0], at[1], at[2]};
  if (tokens != nullptr) {
    Insert(prefix, tokens[2 * i], tokens[2 * i + 1]);
  } else {
    prefix = Combine(prefix, {more[3 * i], more[3 * i + 1], more[3 * i + 2]});
  }
  at[0] = prefix.num;
  at[1] = prefix.den;
  at[2] = prefix.max;
}

__global__ void NothingKernel() {}

unsigned BlocksOf(int64_t count) { return static_cast<unsigned>((count + kBlock - 1) / kBlock); }

}  // namespace

int RunPrefix(float* sums, const float* tokens, const float* more, int64_t count, Stream stream) {
  return Launch(&PrefixKernel, dim3(BlocksOf(count)), dim3(kBlock), 0, stream, sums, tokens, more,
                count);
}

int RunPtx(PtxFunction function, const uint32_t* x, int64_t count, uint32_t* y, Stream stream) {
  return Launch(&FunctionKernel, dim3(BlocksOf(count)), dim3(kBlock), 0, stream, function, x, count,
                y);
}

int RunPtxProduct(PtxProduct product, const float* a, const float* b, float* c, Stream stream) {
  SharedLayout layout;
  layout.Take<uint16_t>(16 * 16);
  layout.Take<uint16_t>(16 * 8);
  return Launch(&ProductKernel, dim3(1), dim3(32), layout.bytes(), stream, product, a, b, c);
}

int RunNothing(int64_t shared_bytes, Stream stream) {
  return Launch(&NothingKernel, dim3(1), dim3(32), static_cast<size_t>(shared_bytes), stream);
}

int64_t SharedLimitOfNothing() {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, &NothingKernel) != cudaSuccess) return -1;
  return attributes.maxDynamicSharedSizeBytes;
}

}  // namespace aft::kernels::cuda
