#pragma once

// This is CUDA's header. When tests compile a kernel for the CPU (AFT_CUDA_ON_CPU), it is the one
// in tests/support/cuda_on_cpu.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace aft::kernels::cuda {

// Carves dynamic shared memory into arrays. The same function runs on the host with no memory, to
// count the bytes of a launch, and in the kernel:
//
//   struct Tile {
//     __host__ __device__ Tile(SharedLayout& shared, int rows) : k(shared.Take<float>(rows)), ...
//     {} float* k;
//   };
//
// On the CPU there are inaccessible gaps between the arrays.
class SharedLayout {
 public:
  // Host: counts only.
  __host__ __device__ explicit SharedLayout(unsigned char* memory = nullptr) : memory_(memory) {}

  // `count` elements at 16-byte alignment.
  template <typename T>
  __host__ __device__ T* Take(int64_t count) {
#ifdef __CUDA_ARCH__  // no branch: ptxas must see that this is shared memory (LDS, STS)
    T* const taken = reinterpret_cast<T*>(memory_ + bytes_);
#else
    T* const taken = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
#endif
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 15) / 16 * 16;
#ifdef AFT_CUDA_ON_CPU
    if (memory_ != nullptr) cuda_on_cpu::PoisonShared(memory_ + bytes_, kGap);
    bytes_ += kGap;
#endif
    return taken;
  }

  __host__ __device__ size_t bytes() const { return bytes_; }

 private:
#ifdef AFT_CUDA_ON_CPU
  static constexpr size_t kGap = 64;
#endif
  unsigned char* memory_;
  size_t bytes_ = 0;
};

// A block's dynamic shared memory; its size is given at launch.
__device__ inline unsigned char* DynamicShared() {
#ifdef AFT_CUDA_ON_CPU
  return cuda_on_cpu::DynamicShared();
#else
  extern __shared__ __align__(128) unsigned char aft_dynamic_shared[];
  return aft_dynamic_shared;
#endif
}

// Host: the number of blocks for `count` elements when each block processes `each`.
inline unsigned Blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

// Host: whether an access of `bytes` (or of 16, if that is less) may start at `data`.
inline bool Aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes < 16 ? bytes : 16) == 0;
}

// Host: the most dynamic shared memory of a block of the current device (99 KiB at compute
// capability 8.6, 8.9 and 12.0, 163 at 8.0, 227 at 9.0 and 10.0); 0 if the device does not answer.
inline size_t SharedLimit() {
#ifdef AFT_CUDA_ON_CPU
  return cuda_on_cpu::SharedLimit();
#else
  int device = 0;
  int bytes = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error == cudaSuccess) return static_cast<size_t>(bytes);
  static_cast<void>(cudaGetLastError());
  return 0;
#endif
}

template <typename T>
struct AsGiven {
  using Type = T;
};

// Starts `kernel` on `stream`; every launch goes through this function. It does nothing for an
// empty grid. Shared memory above 48 KiB is requested first; that call is allowed while a graph is
// captured. Returns cudaSuccess or the error. CUDA's last error is cleared, so that a later caller
// does not take it for its own. cudaErrorInvalidConfiguration means that the device's blocks have
// less shared memory.
template <typename... Params>
cudaError_t Launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                   [[maybe_unused]] cudaStream_t stream, typename AsGiven<Params>::Type... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;
  constexpr size_t kWithoutAsking = size_t{48} << 10;
  if (shared_bytes > kWithoutAsking) {
    // The limit belongs to the kernel, and other threads launch the same kernel with other sizes.
    // So every launch sets the device's limit. CUDA refuses a larger one. No kernel has static
    // shared memory, which would be part of the limit.
    const size_t limit = std::max(shared_bytes, SharedLimit());
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(limit));
    if (error != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return error == cudaErrorInvalidValue ? cudaErrorInvalidConfiguration : error;
    }
  }
#ifdef AFT_CUDA_ON_CPU
  // A test's device may have less than 48 KiB.
  if (shared_bytes > SharedLimit()) return cudaErrorInvalidConfiguration;
  const bool ran = cuda_on_cpu::Run(
      {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, [&] { kernel(args...); },
      reinterpret_cast<const void*>(kernel));
  return ran ? cudaSuccess : cudaErrorLaunchFailure;
#else
  kernel<<<grid, block, shared_bytes, stream>>>(args...);
  return cudaGetLastError();
#endif
}

}  // namespace aft::kernels::cuda
