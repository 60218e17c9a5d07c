#pragma once

#include <cstddef>
#include <cstdint>

// Finds races between CUDA threads, whatever order they run in. A race is two accesses to the same
// bytes of device or shared memory by threads that no barrier orders, when at least one of them is
// a write and not both are atomic. __syncthreads orders the threads of a block. __syncwarp also
// orders the lanes of a warp (shuffles exchange values, but do not order memory). Nothing orders
// the blocks of a launch.
//
// The build with AFT_CUDA_RACES compiles the kernels with -fsanitize=thread, so that they report
// every access. The functions that such code calls are here; ThreadSanitizer's own are not used.
// In other builds nothing is recorded, and nothing here costs time.
//
// For each word (4 bytes) the last write and the last two reads are kept, if possible of threads of
// different warps. A race between 16-bit halves of a word may be missed. A reported race is always
// real.
namespace cuda_on_cpu {

// Watches these bytes of device memory until ForgetMemory. `shared`: every block has its own copy.
void WatchMemory(const void* begin, size_t bytes, bool shared = false);
void ForgetMemory(const void* begin);

// Records an access by the running thread that its code does not report.
void RecordAccess(const void* at, size_t bytes, bool write);

// The running thread's accesses are atomic while one of these exists.
class AtomicAccess {
 public:
  AtomicAccess() {
    atomic_ = true;
    KeepOrder();
  }
  ~AtomicAccess() {
    KeepOrder();
    atomic_ = false;
  }
  static bool active() { return atomic_; }

 private:
  // Keeps the accesses between constructor and destructor: the compiler does not know that
  // reporting an access reads atomic_.
  static void KeepOrder() { asm volatile("" ::: "memory"); }

  inline static bool atomic_ = false;
};

// The place in the run of a launch at which an access happens.
struct Moment {
  uint32_t block = 0;            // number of the run of a block since the process started, from 1
  uint32_t first_of_launch = 0;  // the first such number of the launch
  uint32_t thread = 0;
  uint32_t block_barriers = 0;  // number of __syncthreads before, in this block
  uint32_t warp_barriers = 0;   // number of __syncwarp before, in this warp
  bool running = false;         // a CUDA thread is running
};

}  // namespace cuda_on_cpu
