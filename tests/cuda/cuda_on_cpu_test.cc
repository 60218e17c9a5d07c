// Tests of tests/support/cuda_on_cpu, which all other tests of tests/cuda use. It must run correct
// kernels and detect the errors of broken ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "tests/cuda/broken_kernels.cuh"
#include "tests/cuda/device_array.h"
#include "tests/support/close.h"
#include "tests/support/temp_files.h"

namespace aft::kernels::cuda {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr unsigned kThreads = 128;
constexpr int kSeeds = 20;

std::vector<float> Counting(size_t n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

// Runs a kernel with kSeeds orders of its threads. Returns the number of results that are not
// `expected` or in which a race was found.
template <typename RunKernel>
int WrongResults(const std::vector<float>& expected, RunKernel run) {
  int wrong = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    cuda_on_cpu::SetOrderSeed(seed);
    DeviceArray<float> y(expected.size());
    if (run(y.get()) != cudaSuccess || y.Get() != expected) ++wrong;
  }
  return wrong;
}

template <typename Kernel>
int WrongReverses(Kernel* kernel, size_t floats, unsigned threads) {
  const DeviceArray<float> x(Counting(floats));
  const std::vector<float> straight = Counting(floats);
  return WrongResults({straight.rbegin(), straight.rend()}, [&](float* y) {
    return Launch(kernel, dim3(1), dim3(threads), SharedFloats(static_cast<int64_t>(floats)),
                  nullptr, x.get(), y);
  });
}

TEST(CudaOnCpu, ABarrierIsNeededBetweenWritesAndReads) {
  EXPECT_EQ(WrongReverses(&Reverse<true>, kThreads, kThreads), 0);
  EXPECT_EQ(WrongReverses(&Reverse<false>, kThreads, kThreads), kSeeds);
}

TEST(CudaOnCpu, ABarrierIsNeededBetweenReadsAndTheNextWrites) {
  constexpr int kRounds = 3;
  const std::vector<float> values = Counting(kThreads);
  const DeviceArray<float> x(values);
  std::vector<float> expected(kThreads, 0.0F);
  for (unsigned i = 0; i < kThreads; ++i) {
    for (unsigned round = 0; round < kRounds; ++round) {
      expected[i] += values[(i + round) % kThreads] * static_cast<float>(round + 1);
    }
  }
  const auto wrong = [&](void (*kernel)(const float*, float*, int)) {
    return WrongResults(expected, [&](float* y) {
      return Launch(kernel, dim3(1), dim3(kThreads), SharedFloats(kThreads), nullptr, x.get(), y,
                    kRounds);
    });
  };
  EXPECT_EQ(wrong(&Rounds<true>), 0);
  EXPECT_EQ(wrong(&Rounds<false>), kSeeds);
}

TEST(CudaOnCpu, LanesOfAWarpDoNotRunInLockstep) {
  EXPECT_EQ(WrongReverses(&ReverseWarp<true>, 32, 32), 0);
  EXPECT_EQ(WrongReverses(&ReverseWarp<false>, 32, 32), kSeeds);
}

TEST(CudaOnCpu, AsynchronousCopiesArriveWhenWaitedFor) {
  EXPECT_EQ(WrongReverses(&ReverseAsync<true, true, true>, 4 * kThreads, kThreads), 0);
  EXPECT_EQ(WrongReverses(&ReverseAsync<false, true, true>, 4 * kThreads, kThreads), kSeeds);
  EXPECT_EQ(WrongReverses(&ReverseAsync<true, false, true>, 4 * kThreads, kThreads), kSeeds);
  EXPECT_EQ(WrongReverses(&ReverseAsync<true, true, false>, 4 * kThreads, kThreads), kSeeds);
}

TEST(CudaOnCpu, TheSourceOfACopyMayBeReadLate) {
  DeviceArray<float> x(4 * kThreads);
  DeviceArray<float> y(kThreads);
  x.Set(Counting(4 * kThreads));
  ASSERT_EQ(Launch(&ChangeWhileCopying, dim3(1), dim3(kThreads), SharedFloats(4 * kThreads),
                   nullptr, x.get(), y.get()),
            cudaSuccess);
  const std::vector<float> result = y.Get();
  EXPECT_THAT(result, testing::Contains(-1.0F));
  EXPECT_THAT(result, testing::Contains(testing::Gt(0.0F)));
}

TEST(CudaOnCpu, SharedMemoryStartsAsNaN) {
  const DeviceArray<float> x(Counting(32));
  const DeviceArray<float> y(32);
  ASSERT_EQ(Launch(&Uninitialised, dim3(1), dim3(32), SharedFloats(32), nullptr, x.get(), y.get()),
            cudaSuccess);
  EXPECT_THAT(y.Get(), testing::Each(testing::IsNan()));
}

TEST(CudaOnCpu, AMaskThatIsOffByOneIsFarFromFloat64) {
  constexpr int kTokens = 100;
  const std::vector<float> values = Counting(kTokens);
  const DeviceArray<float> x(values);
  std::vector<double> means;
  double sum = 0.0;
  for (const float value : values) {
    sum += static_cast<double>(value);
    means.push_back(sum / static_cast<double>(means.size() + 1));
  }
  const auto error = [&](void (*kernel)(const float*, int, float*)) {
    const DeviceArray<float> y(kTokens);
    EXPECT_EQ(Launch(kernel, dim3(kTokens), dim3(32), 0, nullptr, x.get(), kTokens, y.get()),
              cudaSuccess);
    return CompareWith(means, y.Get()).relative;
  };
  EXPECT_LT(error(&CausalMean<0>), 1e-6);
  EXPECT_GT(error(&CausalMean<1>), 0.5);
  EXPECT_GT(error(&CausalMean<-1>), 0.5);
}

// ---- Memory errors end the process

class CudaOnCpuDeathTest : public testing::Test {
 protected:
  void SetUp() override {
#ifdef AFT_CUDA_RACES
    GTEST_SKIP() << "this build looks for races, not for memory errors";
#endif
  }
  const DeviceArray<float> x_{Counting(kThreads)};
  const DeviceArray<float> y_{kThreads};
};

TEST_F(CudaOnCpuDeathTest, ReadsOutsideAnArray) {
  const auto read = [&](int offset) {
    return Launch(&Read, dim3(1), dim3(kThreads), 0, nullptr, x_.get(), offset, y_.get());
  };
  EXPECT_EQ(read(0), cudaSuccess);
  EXPECT_EQ(y_.Get(), x_.Get());
  EXPECT_DEATH(read(1), "heap-buffer-overflow(.|\n)*READ of size 4");
  EXPECT_DEATH(read(-1), "heap-buffer-overflow(.|\n)*READ of size 4");
}

TEST_F(CudaOnCpuDeathTest, ReadsOutsideAnArrayByAsynchronousCopies) {
  EXPECT_DEATH(
      Launch(&ReadAsync, dim3(1), dim3(kThreads / 4), SharedFloats(kThreads), nullptr, x_.get(), 4),
      "heap-buffer-overflow(.|\n)*READ of size 16");
}

TEST_F(CudaOnCpuDeathTest, WritesOutsideAnArray) {
  EXPECT_DEATH(Launch(&Write, dim3(1), dim3(kThreads), 0, nullptr, y_.get(), 1),
               "heap-buffer-overflow(.|\n)*WRITE of size 4");
}

TEST_F(CudaOnCpuDeathTest, UseOfFreedMemory) {
  void* freed = nullptr;
  ASSERT_EQ(cudaMalloc(&freed, 4 * kThreads), cudaSuccess);
  cudaFree(freed);
  EXPECT_DEATH(Launch(&Write, dim3(1), dim3(kThreads), 0, nullptr, static_cast<float*>(freed), 0),
               "heap-use-after-free");
}

TEST_F(CudaOnCpuDeathTest, WritesBetweenAndBeyondTheArraysOfSharedMemory) {
  SharedLayout layout;
  TwoArrays counted(layout);
  const auto write = [&](bool second, int at) {
    return Launch(&WriteShared, dim3(1), dim3(32), layout.bytes(), nullptr, second, at);
  };
  EXPECT_EQ(write(false, 31), cudaSuccess);
  EXPECT_EQ(write(true, 31), cudaSuccess);
  EXPECT_DEATH(write(false, 32), "use-after-poison(.|\n)*WRITE of size 4");
  EXPECT_DEATH(write(true, -1), "use-after-poison(.|\n)*WRITE of size 4");
  EXPECT_DEATH(write(true, 32), "use-after-poison(.|\n)*WRITE of size 4");
  EXPECT_DEATH(write(true, 32 + 16), "heap-buffer-overflow(.|\n)*WRITE of size 4");
}

TEST_F(CudaOnCpuDeathTest, AVectorLoadThatIsNotAligned) {
  const auto read = [&](size_t offset) {
    return Launch(&ReadFour, dim3(1), dim3(32), 0, nullptr, x_.get() + offset, y_.get());
  };
  EXPECT_EQ(read(4), cudaSuccess);
  EXPECT_DEATH(read(1), "misaligned address");
}

TEST_F(CudaOnCpuDeathTest, OverflowOfAStack) {
  EXPECT_DEATH(Launch(&Recurses, dim3(1), dim3(32), 0, nullptr), "stack-overflow");
}

// ---- Races

TEST(CudaOnCpu, RacesAreReportedWithBothPlaces) {
#ifndef AFT_CUDA_RACES
  GTEST_SKIP() << "this build looks for memory errors, not for races";
#endif
  const DeviceArray<float> x(Counting(kThreads));
  const DeviceArray<float> y(kThreads);
  const auto why = [&](auto... launch) {
    return Launch(launch...) == cudaSuccess ? "" : cuda_on_cpu::LastError();
  };
  const std::string places =
      ": thread [0-9]+ at [^ ]*broken_kernels.cuh:[0-9]+ and thread [0-9]+ at [^ ]*cuh:[0-9]+";
  const size_t shared = SharedFloats(kThreads);
  EXPECT_THAT(why(&Reverse<false>, dim3(1), dim3(kThreads), shared, nullptr, x.get(), y.get()),
              ContainsRegex("race: (read after write|write after read)" + places));
  EXPECT_EQ(why(&Reverse<true>, dim3(1), dim3(kThreads), shared, nullptr, x.get(), y.get()), "");
  EXPECT_THAT(why(&Reverse<true>, dim3(2), dim3(kThreads), shared, nullptr, x.get(), y.get()),
              ContainsRegex("race: write after write: thread .* of another block at "));

  const DeviceArray<int> count(std::vector<int>{0});
  EXPECT_EQ(why(&Count<true>, dim3(2), dim3(64), 0, nullptr, count.get()), "");
  EXPECT_EQ(count.Get()[0], 128);
  EXPECT_THAT(why(&Count<false>, dim3(1), dim3(64), 0, nullptr, count.get()), HasSubstr("race: "));
}

// ---- Launches that fail

template <typename... Params>
std::string Failure(void (*kernel)(Params...), unsigned threads,
                    typename AsGiven<Params>::Type... args) {
  const cudaError_t error = Launch(kernel, dim3(2), dim3(threads), 0, nullptr, args...);
  EXPECT_EQ(error, error == cudaSuccess ? cudaSuccess : cudaErrorLaunchFailure);
  const std::string why = error == cudaSuccess ? "" : cudaGetErrorString(error);
  // A failed launch must not affect the next one.
  EXPECT_EQ(WrongReverses(&Reverse<true>, kThreads, kThreads), 0);
  return why;
}

TEST(CudaOnCpu, BarriersAtDifferentPlacesAreReportedWithBoth) {
  EXPECT_EQ(Failure(&TwoBarriers, 64, 64), "");
  const std::string place = "wait for their block at [^;]*broken_kernels.cuh:";
  EXPECT_THAT(Failure(&TwoBarriers, 64, 40),
              AllOf(HasSubstr("barrier divergence"), HasSubstr("40 threads (first 0)"),
                    HasSubstr("24 threads (first 40)"), ContainsRegex(place + ".*; .*" + place)));
}

TEST(CudaOnCpu, ABarrierThatEndedThreadsMissIsReported) {
  EXPECT_THAT(Failure(&EndsEarly, 64, 63),
              AllOf(HasSubstr("63 threads (first 0) wait for their block at "),
                    HasSubstr("1 threads (first 63) have ended")));
}

TEST(CudaOnCpu, AWarpOperationThatSomeLanesMissIsReported) {
  const DeviceArray<float> y(2 * 64);
  EXPECT_THAT(Failure(&BarrierAndShuffle, 64, 5, y.get()),
              AllOf(HasSubstr("5 threads (first 0) wait for their block at "),
                    HasSubstr("27 threads (first 5) wait for their warp at ")));
  EXPECT_THAT(Failure(&Shuffle, 64, 0xFFFFFFFF, 31, y.get()),
              AllOf(HasSubstr("31 threads (first 0) wait for their warp at "),
                    HasSubstr("33 threads (first 31) have ended")));
}

TEST(CudaOnCpu, AMaskThatDoesNotNameAllLanesIsReported) {
  const DeviceArray<float> y(2 * 32);
  EXPECT_EQ(Failure(&Shuffle, 32, 0xFFFFFFFF, 32, y.get()), "");
  EXPECT_THAT(Failure(&Shuffle, 32, 0x7FFFFFFF, 32, y.get()),
              ContainsRegex("warp operation of lanes 7fffffff, not of all, at .*cuh:"));
}

TEST(CudaOnCpu, AnExceptionInAThreadIsReported) {
  EXPECT_THAT(Failure(&Throws, 64),
              ContainsRegex("thread .7, 0, 0.: it throws: no such thing on a GPU"));
}

TEST(CudaOnCpu, AKernelDoesNotLaunchKernels) {
  EXPECT_THAT(Failure(&Launches, 32), HasSubstr("a kernel launches a kernel"));
}

TEST(CudaOnCpu, LaunchesAreLimitedAsOnAGpu) {
  const auto error = [](dim3 grid, dim3 block, size_t shared) {
    return Launch(&Nothing, grid, block, shared, nullptr);
  };
  using cuda_on_cpu::kMostShared;
  EXPECT_EQ(error(dim3(0), dim3(32), 0), cudaSuccess);
  EXPECT_EQ(error(dim3(1), dim3(1024), kMostShared), cudaSuccess);
  EXPECT_EQ(error(dim3(1), dim3(1024), kMostShared + 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error(dim3(1), dim3(1056), 0), cudaErrorLaunchFailure);
  EXPECT_EQ(error(dim3(1), dim3(32, 33), 0), cudaErrorLaunchFailure);
  EXPECT_EQ(error(dim3(1), dim3(1, 1, 96), 0), cudaErrorLaunchFailure);
  EXPECT_EQ(error(dim3(1), dim3(0), 0), cudaErrorLaunchFailure);
  EXPECT_EQ(error(dim3(1, 65535), dim3(32), 0), cudaSuccess);
  EXPECT_EQ(error(dim3(1, 65536), dim3(32), 0), cudaErrorLaunchFailure);
  EXPECT_EQ(error(dim3(1), dim3(33), 0), cudaErrorLaunchFailure);
  EXPECT_THAT(cudaGetErrorString(cudaErrorLaunchFailure), HasSubstr("whole number of warps"));
}

TEST(CudaOnCpu, LaunchesAreLogged) {
#ifdef AFT_CUDA_RACES
  GTEST_SKIP() << "only AddressSanitizer knows which bytes are gaps between shared arrays";
#endif
  const TempFolder folder;
  const std::string log = folder.File("launches");
  ASSERT_EQ(setenv("AFT_LAUNCH_LOG", log.c_str(), 1), 0);
  for (int i = 0; i < 2; ++i) WrongReverses(&Reverse<true>, 96, 96);
  unsetenv("AFT_LAUNCH_LOG");
  EXPECT_EQ(ReadBytes(log),
            "96\t384\tvoid aft::kernels::cuda::Reverse<true>(float const*, float*)\n");
}

}  // namespace
}  // namespace aft::kernels::cuda
