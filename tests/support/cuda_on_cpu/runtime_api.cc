#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/support/cuda_on_cpu/include/cuda_runtime.h"
#include "tests/support/cuda_on_cpu/include/cuda_runtime_api.h"
#include "tests/support/cuda_on_cpu/threads.h"

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  constexpr size_t kAlignment = 256;  // CUDA's
  if (posix_memalign(memory, kAlignment, bytes > 0 ? bytes : 1) != 0) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(*memory, 0xFF, bytes);
  cuda_on_cpu::WatchMemory(*memory, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  cuda_on_cpu::ForgetMemory(memory);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t /*stream*/) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (bytes > 0) std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
struct CUevent_st {
  std::chrono::steady_clock::time_point at;
};
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t /*stream*/) {
  event->at = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t /*stream*/, cudaStreamCaptureMode /*mode*/) {
  return cudaErrorNotSupported;
}
cudaError_t cudaStreamEndCapture(cudaStream_t /*stream*/, cudaGraph_t* /*graph*/) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* /*replay*/, cudaGraph_t /*graph*/,
                                 unsigned /*flags*/) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t /*replay*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t /*replay*/) { return cudaErrorNotSupported; }
cudaError_t cudaGraphDestroy(cudaGraph_t /*graph*/) { return cudaErrorNotSupported; }

int& cuda_on_cpu::SharedLimitOf(const void* kernel) {
  static std::map<const void*, int> limits;
  return limits.try_emplace(kernel, 48 << 10).first->second;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorLaunchFailure:
      return cuda_on_cpu::LastError().c_str();
  }
  return "unrecognized error code";
}
