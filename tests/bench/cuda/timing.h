#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "model/kernels/cuda/types.h"
#include "tests/cuda/device_array.h"

namespace aft {

// One thing to time.
struct BenchCase {
  std::string name;   // "aft_step"
  std::string shape;  // "local s=32 bf16 ring, B=256 d=1024, fp32 -> bf16"
  double bytes = 0;   // the least that it must move, read plus written
  double flops = 0;   // 0 if the bytes limit the speed
  // Queues one run on the stream; result: cudaError_t. `turn` counts the runs, for work that
  // depends on where in a cycle it is.
  std::function<int(kernels::cuda::Stream stream, int turn)> run;
  int turns = 1;  // runs of one cycle
};

struct Timing {
  double microseconds = 0;  // median of one run
  double spread = 0;        // (third quartile - first) / median
  bool graph = false;       // times replays of a graph, otherwise launches
};

// Times whole cycles with events, as replays of one graph where the device can capture: launches of
// small kernels would be timed otherwise. Ends the program with a message when a run fails.
Timing Time(const BenchCase& bench, bool smoke);

// Bytes per second, read plus written, of a device-to-device copy of `bytes`: the driver's, or a
// kernel's where that is faster.
double CopyRate(int64_t bytes, bool smoke);

// An array of the device filled with numbers of [low, high]: a short pseudo-random pattern,
// repeated.
DeviceArray<float> Filled(int64_t floats, float low, float high);
DeviceArray<uint16_t> FilledBf16(int64_t numbers, float low, float high);

}  // namespace aft
