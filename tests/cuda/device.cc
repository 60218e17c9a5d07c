#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

// Without a device every test of the program is skipped, and says so.
namespace aft {
namespace {

class NeedsDevice : public testing::Environment {
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
  }
};

const testing::Environment* const kNeedsDevice = testing::AddGlobalTestEnvironment(new NeedsDevice);

}  // namespace
}  // namespace aft
