#pragma once

#include <cstddef>
#include <cstdint>

// Finds races between CUDA threads, whatever order they run in: two accesses to the same bytes of
// device or shared memory, at least one of them a write and not both atomic, by threads that no
// barrier orders. Threads of a block are ordered by __syncthreads, lanes of a warp also by
// __syncwarp (shuffles exchange values, but promise nothing about memory), blocks of a launch by
// nothing.
//
// The kernels tell of every access because the build with AFT_CUDA_RACES compiles them with
// -fsanitize=thread; the functions that such code calls are here and not ThreadSanitizer's.
// Without it nothing is recorded, and nothing here costs time.
//
// Of each word (4 bytes) the last write and two last reads are kept, by threads of different warps
// if there are such: a race between 16-bit halves of a word may be missed, none is made up.
namespace cuda_on_cpu {

// Device memory from now on until it is forgotten; `shared`: every block has its own.
void WatchMemory(const void* begin, size_t bytes, bool shared = false);
void ForgetMemory(const void* begin);

// An access by the running thread that its code does not tell of.
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
  // The compiler sees neither that an access tells of itself, and so asks, nor where.
  static void KeepOrder() { asm volatile("" ::: "memory"); }

  inline static bool atomic_ = false;
};

// When and by whom something is done.
struct Moment {
  uint32_t block = 0;            // number of the run of a block since the process started, from 1
  uint32_t first_of_launch = 0;  // the first such number of the launch
  uint32_t thread = 0;
  uint32_t block_barriers = 0;  // __syncthreads before, in this block
  uint32_t warp_barriers = 0;   // __syncwarp before, in this warp
  bool running = false;         // a CUDA thread is
};

}  // namespace cuda_on_cpu
