#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "base/check.h"

namespace aft {

// An array in the memory of the device, which is a GPU or tests/support/cuda_on_cpu. The latter
// allocates exactly the size that is asked for and detects an access outside it.
template <typename T>
class DeviceArray {
 public:
  // Fills the array with bytes 0xFF, which are NaN in floating-point formats.
  explicit DeviceArray(size_t size) : size_(size) {
    void* memory = nullptr;
    AFT_CHECK(cudaMalloc(&memory, size * sizeof(T)) == cudaSuccess);
    data_ = static_cast<T*>(memory);
    AFT_CHECK(cudaMemset(data_, 0xFF, size * sizeof(T)) == cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { Set(values); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

  T* get() const { return data_; }
  size_t size() const { return size_; }

  void Set(const std::vector<T>& values) {
    AFT_CHECK(values.size() == size_);
    AFT_CHECK(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice) ==
              cudaSuccess);
  }
  // Waits for all work of the device before it copies.
  std::vector<T> Get() const {
    AFT_CHECK(cudaDeviceSynchronize() == cudaSuccess);
    std::vector<T> values(size_);
    AFT_CHECK(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost) ==
              cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

}  // namespace aft
