#ifndef AFT_TESTS_SUPPORT_CUDA_ON_CPU_INCLUDE_CUDA_RUNTIME_API_H_
#define AFT_TESTS_SUPPORT_CUDA_ON_CPU_INCLUDE_CUDA_RUNTIME_API_H_

#include <cstddef>

// Stands in for CUDA's header of the same name: the device is this process. Device memory is host
// memory of exactly the size asked for, filled with 0xFF (NaN), so that AddressSanitizer sees what
// a kernel touches beyond it.

using cudaStream_t = struct CUstream_st*;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorLaunchFailure = 719,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};

cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = nullptr);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);         // 1
const char* cudaGetErrorString(cudaError_t error);  // a failed launch: cuda_on_cpu::LastError()

#endif  // AFT_TESTS_SUPPORT_CUDA_ON_CPU_INCLUDE_CUDA_RUNTIME_API_H_
