#include "tests/bench/cuda/timing.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "model/kernels/cuda/rows/rows.h"

namespace aft {
namespace {

[[noreturn]] void Die(const std::string& what, cudaError_t error) {
  std::fprintf(stderr, "cuda_kernels_bench: %s: %s\n", what.c_str(), cudaGetErrorString(error));
  std::exit(1);
}

void Check(const std::string& what, cudaError_t error) {
  if (error != cudaSuccess) Die(what, error);
}

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    Check("event", cudaEventCreate(&begin_));
    Check("event", cudaEventCreate(&end_));
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  double Microseconds(const std::function<void()>& work) {
    Check("event", cudaEventRecord(begin_, stream_));
    work();
    Check("event", cudaEventRecord(end_, stream_));
    Check("work", cudaEventSynchronize(end_));
    float milliseconds = 0;
    Check("event", cudaEventElapsedTime(&milliseconds, begin_, end_));
    return double{milliseconds} * 1000;
  }

 private:
  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

class StreamOwner {
 public:
  StreamOwner() { Check("stream", cudaStreamCreate(&stream_)); }
  ~StreamOwner() { cudaStreamDestroy(stream_); }
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

double Quantile(std::vector<double> times, double q) {
  std::sort(times.begin(), times.end());
  return times[static_cast<size_t>(q * static_cast<double>(times.size() - 1) + 0.5)];
}

constexpr size_t kPattern = size_t{1} << 16;

std::vector<float> Pattern(float low, float high) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> pattern(kPattern);
  for (float& x : pattern) x = uniform(random);
  return pattern;
}

template <typename T>
DeviceArray<T> Repeated(int64_t count, const std::vector<T>& pattern) {
  const auto size = static_cast<size_t>(count);
  DeviceArray<T> array(size);
  for (size_t at = 0; at < size; at += kPattern) {
    Check("copy", cudaMemcpy(array.get() + at, pattern.data(),
                             std::min(kPattern, size - at) * sizeof(T), cudaMemcpyHostToDevice));
  }
  return array;
}

}  // namespace

Timing Time(const BenchCase& bench, bool smoke) {
  const StreamOwner owner;
  const cudaStream_t stream = owner.get();
  const auto cycle = [&] {
    for (int turn = 0; turn < bench.turns; ++turn) {
      const int error = bench.run(stream, turn);
      if (error != 0) Die(bench.name + " " + bench.shape, static_cast<cudaError_t>(error));
    }
  };
  cycle();
  Check(bench.name, cudaStreamSynchronize(stream));

  // A measurement has about 2 ms of work, so that the cost of the events is negligible.
  Stopwatch watch(stream);
  const double first = std::max(watch.Microseconds(cycle), 1.0);
  const int cycles = smoke ? 1 : std::clamp(static_cast<int>(2000 / first), 1, 200);
  const auto batch = [&] {
    for (int i = 0; i < cycles; ++i) cycle();
  };

  Timing result;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess) {
    batch();
    Check("capture", cudaStreamEndCapture(stream, &graph));
    Check("capture", cudaGraphInstantiate(&replay, graph, 0));
    result.graph = true;
  }
  const auto measured = [&] {
    if (result.graph) {
      Check("replay", cudaGraphLaunch(replay, stream));
    } else {
      batch();
    }
  };
  std::vector<double> times;
  const int measurements = smoke ? 1 : 25;
  for (int i = 0; i < measurements + 3; ++i) {
    const double time = watch.Microseconds(measured) / cycles / bench.turns;
    if (i >= 3 || smoke) times.push_back(time);  // the first ones warm up
  }
  if (result.graph) {
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
  }
  result.microseconds = Quantile(times, 0.5);
  result.spread = (Quantile(times, 0.75) - Quantile(times, 0.25)) / result.microseconds;
  return result;
}

double CopyRate(int64_t bytes, bool smoke) {
  constexpr int64_t kWidth = 1024;
  const DeviceArray<float> from = Filled(bytes / 4, -1, 1);
  const DeviceArray<float> to(from.size());
  BenchCase copy;
  copy.name = "copy";
  copy.run = [&](kernels::cuda::Stream stream, int) {
    return static_cast<int>(
        cudaMemcpyAsync(to.get(), from.get(), from.size() * 4, cudaMemcpyDeviceToDevice, stream));
  };
  const double by_driver = Time(copy, smoke).microseconds;
  copy.run = [&](kernels::cuda::Stream stream, int) {
    return kernels::cuda::BiasActivation({from.get(), Number::kFp32, kWidth}, nullptr,
                                         Activation::kNone, bytes / 4 / kWidth, kWidth,
                                         {to.get(), Number::kFp32, kWidth}, stream);
  };
  const double by_kernel = Time(copy, smoke).microseconds;
  return 2 * static_cast<double>(bytes) / (std::min(by_driver, by_kernel) * 1e-6);
}

DeviceArray<float> Filled(int64_t floats, float low, float high) {
  return Repeated(floats, Pattern(low, high));
}

DeviceArray<uint16_t> FilledBf16(int64_t numbers, float low, float high) {
  const std::vector<float> pattern = Pattern(low, high);
  std::vector<uint16_t> rounded(pattern.size());
  for (size_t i = 0; i < pattern.size(); ++i) {
    rounded[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(pattern[i]) >> 16);
  }
  return Repeated(numbers, rounded);
}

}  // namespace aft
