#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>

// Skips every test of the program, with a message, where there is no CUDA device. If asking for the
// devices fails in another way, every test fails.
namespace aft {
namespace {

class NeedsDevice : public testing::Environment {
  void SetUp() override {
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // see cuda_queue.h
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
        (error == cudaSuccess && devices == 0)) {
      GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(error);
    }
    ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  }
};

const testing::Environment* const kNeedsDevice = testing::AddGlobalTestEnvironment(new NeedsDevice);

}  // namespace
}  // namespace aft
