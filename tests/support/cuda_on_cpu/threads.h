#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <string>

#include "tests/support/cuda_on_cpu/races.h"

// Runs a CUDA kernel's source, compiled by the host's compiler, on one CPU thread: a fiber for each
// CUDA thread, block after block. A fiber runs until it waits for others (__syncthreads, a warp
// operation) or ends; which one runs next is drawn from a seed. So a result that depends on an
// order that no barrier ensures is wrong, or differs from seed to seed. Not thread-safe.
namespace cuda_on_cpu {

using Site = std::source_location;

struct Dim {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// Why the last launch failed, or empty.
const std::string& LastError();

// Sets the seed of the orders in which threads and blocks run. It starts as AFT_TEST_SEED, or 1.
void SetOrderSeed(uint64_t seed);

// Runs `thread` for every CUDA thread. False, with LastError, when
// - the launch is larger than a GPU allows, or its blocks are not a whole number of warps;
// - threads wait at different barriers, or for threads that have ended;
// - a warp operation does not name all 32 lanes: this project needs no such operations;
// - cp.async copies to or from an address that is not aligned to its size;
// - a thread throws, or launches a kernel;
// - threads race for memory (races.h; only in the build with AFT_CUDA_RACES).
// Memory errors end the process, as AddressSanitizer does. The rest of a failed launch does not
// run; its threads are unwound.
//
// `kernel` is the kernel's address: with AFT_LAUNCH_LOG=file every new kind of launch is a line of
// that file (launch_log.h).
bool Run(Dim grid, Dim block, size_t shared_bytes, const std::function<void()>& thread,
         const void* kernel = nullptr);

// Bytes of dynamic shared memory that a block can have: 227 KiB, unless a test sets less to emulate
// a smaller GPU.
size_t SharedLimit();
void SetSharedLimit(size_t bytes);
inline constexpr size_t kMostShared = size_t{227} << 10;

// ---- Functions for the intrinsics, which the running CUDA thread may call

// The block's dynamic shared memory: filled with 0xFF (NaN) when the block starts.
unsigned char* DynamicShared();
// Makes bytes of the shared memory inaccessible until the block ends.
void PoisonShared(unsigned char* from, size_t bytes);

void SyncBlock(Site site);

// Each lane of the warp gives `bytes` bytes (at most kExchangeBytes) and gets those of all lanes:
// the bytes of lane i are at i * kExchangeBytes. Valid until the thread's next warp operation.
// `mask` must name all lanes.
inline constexpr size_t kExchangeBytes = 64;

// For functions that only read what lanes have given: that is no memory of a GPU, and they would
// take a third of the longest tests. The second one is for the functions that these call.
#define AFT_NOT_INSTRUMENTED __attribute__((no_sanitize("address", "alignment", "thread")))
#define AFT_PART_OF_NOT_INSTRUMENTED __attribute__((always_inline)) AFT_NOT_INSTRUMENTED

const unsigned char* ExchangeInWarp(unsigned mask, const void* value, size_t bytes, Site site);

template <typename T>
class FromWarp {
 public:
  FromWarp(unsigned mask, const T& value, Site site)
      : bytes_(ExchangeInWarp(mask, &value, sizeof(T), site)) {
    static_assert(sizeof(T) <= kExchangeBytes);
  }
  T operator[](unsigned lane) const {
    T value;
    std::memcpy(&value, bytes_ + lane * kExchangeBytes, sizeof(T));
    return value;
  }
  // Reads it without a copy.
  AFT_PART_OF_NOT_INSTRUMENTED const T& At(unsigned lane) const {
    static_assert(alignof(T) <= 16);
    return *reinterpret_cast<const T*>(bytes_ + lane * kExchangeBytes);
  }

 private:
  const unsigned char* bytes_;
};

unsigned Lane();

// __syncwarp: a warp operation that also orders the lanes' accesses to memory.
void SyncWarp(unsigned mask, Site site);

extern Moment current_moment;
// Lets the launch run to its end and then fail.
void FailAtEnd(const std::string& why);

// cp.async of `bytes` bytes, then `zeros` zeros; 4, 8 or 16 together. They arrive when the thread
// waits for their group; until then the destination holds 0xFF. The source is read at once or when
// they arrive (drawn at random), because a GPU may read it at any time in between.
void CopyAsync(void* to, const void* from, size_t bytes, size_t zeros);
void CommitCopies();
// Waits for all groups except the `pending` ones that were committed last.
void WaitForCopies(size_t pending);

}  // namespace cuda_on_cpu
