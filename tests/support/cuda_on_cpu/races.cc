#include "tests/support/cuda_on_cpu/races.h"

#include <sys/mman.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <sstream>
#include <string>

#include "tests/support/cuda_on_cpu/symbols.h"
#include "tests/support/cuda_on_cpu/threads.h"

namespace cuda_on_cpu {
namespace {

constexpr size_t kWord = 4;
constexpr uint32_t kWarp = 32;

struct Access {
  const void* code = nullptr;
  uint32_t block = 0;  // 0: no access
  uint32_t block_barriers = 0;
  uint32_t warp_barriers = 0;
  uint16_t thread = 0;
  uint8_t bytes = 0;  // a bit for each byte of the word
  bool atomic = false;
};

struct Word {
  Access write;
  Access reads[2];
};

struct Region {
  uintptr_t end = 0;
  bool shared = false;
  Word* words = nullptr;  // null before the first access
};

bool watching = false;  // the process has code that reports its accesses

std::map<uintptr_t, Region>& Regions() {
  static std::map<uintptr_t, Region>& regions = *new std::map<uintptr_t, Region>;
  return regions;
}

// The last result of Find for the addresses of a granule. Kernels switch between a few arrays, and
// access their own stacks even more often. A result is invalid after the regions have changed.
struct Found {
  uintptr_t granule = 0;
  uint64_t when = 0;  // `changes` at that time
  uintptr_t begin = 0;
  Region* region = nullptr;  // null: no region has a part of the granule
};
constexpr uintptr_t kGranule = 128;
uint64_t changes = 1;
std::array<Found, 4096> found_last;

// The last region that has a part of the granule of `at`; null if there is no such region.
const Found& Find(uintptr_t at) {
  const uintptr_t granule = at / kGranule;
  Found& found = found_last[granule % found_last.size()];
  if (found.granule == granule && found.when == changes) return found;
  found = {granule, changes, 0, nullptr};
  const auto next = Regions().lower_bound((granule + 1) * kGranule);
  if (next == Regions().begin()) return found;
  const auto last = std::prev(next);
  if (last->second.end <= granule * kGranule) return found;
  found.begin = last->first;
  found.region = &last->second;
  return found;
}

size_t WordsOf(uintptr_t begin, uintptr_t end) { return (end - begin + kWord - 1) / kWord; }

bool Ordered(const Access& before, const Moment& now, bool shared) {
  if (before.block != now.block) return shared || before.block < now.first_of_launch;
  if (before.thread == now.thread || before.block_barriers < now.block_barriers) return true;
  return before.thread / kWarp == now.thread / kWarp && before.warp_barriers < now.warp_barriers;
}

void CheckAgainst(const Access& before, const Access& access, const Moment& now, bool shared,
                  const char* what) {
  if ((before.bytes & access.bytes) == 0 || (before.atomic && access.atomic) ||
      Ordered(before, now, shared) || !LastError().empty()) {
    return;
  }
  std::ostringstream text;
  text << "race: " << what << ": thread " << now.thread << " at " << PlaceOf(access.code)
       << " and thread " << before.thread << (before.block == now.block ? "" : " of another block")
       << " at " << PlaceOf(before.code);
  FailAtEnd(text.str());
}

void RecordWord(Word& word, const Access& access, bool write, const Moment& now, bool shared) {
  CheckAgainst(word.write, access, now, shared, write ? "write after write" : "read after write");
  if (write) {
    for (const Access& read : word.reads)
      CheckAgainst(read, access, now, shared, "write after read");
    word.write = access;
    return;
  }
  Access& last = word.reads[0];
  if (last.block != access.block || last.thread / kWarp != access.thread / kWarp) {
    word.reads[1] = last;
  }
  last = access;
}

void Record(uintptr_t at, size_t bytes, bool write, const void* code) {
  const Moment& now = current_moment;
  if (!now.running) return;
  const Found& found = Find(at);
  // Regions begin at granules, so no other region has a part of this granule.
  if (found.region == nullptr || at < found.begin || at >= found.region->end) return;
  const uintptr_t begin = found.begin;
  Region& region = *found.region;
  if (region.words == nullptr) {
    void* const words =
        mmap(nullptr, WordsOf(begin, region.end) * sizeof(Word), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (words == MAP_FAILED) {
      std::perror("cuda_on_cpu: record of accesses");
      std::abort();
    }
    region.words = static_cast<Word*>(words);
  }
  Access access;
  access.code = code;
  access.block = now.block;
  access.block_barriers = now.block_barriers;
  access.warp_barriers = now.warp_barriers;
  access.thread = static_cast<uint16_t>(now.thread);
  access.atomic = AtomicAccess::active();
  const uintptr_t end = std::min(at + bytes, region.end);
  for (uintptr_t byte = at; byte < end;) {
    const size_t from = (byte - begin) % kWord;
    const size_t count = std::min<size_t>(kWord - from, end - byte);
    access.bytes = static_cast<uint8_t>(((1U << count) - 1) << from);
    RecordWord(region.words[(byte - begin) / kWord], access, write, now, region.shared);
    byte += count;
  }
}

}  // namespace

void WatchMemory(const void* begin, size_t bytes, bool shared) {
  if (bytes == 0) return;
  const uintptr_t at = reinterpret_cast<uintptr_t>(begin);
  ForgetMemory(begin);
  if (at % kGranule != 0) std::abort();
  Region& region = Regions()[at];
  region.end = at + bytes;
  region.shared = shared;
  ++changes;
}

void ForgetMemory(const void* begin) {
  const auto found = Regions().find(reinterpret_cast<uintptr_t>(begin));
  if (found == Regions().end()) return;
  if (found->second.words != nullptr) {
    munmap(found->second.words, WordsOf(found->first, found->second.end) * sizeof(Word));
  }
  Regions().erase(found);
  ++changes;
}

void RecordAccess(const void* at, size_t bytes, bool write) {
  if (watching) Record(reinterpret_cast<uintptr_t>(at), bytes, write, __builtin_return_address(0));
}

}  // namespace cuda_on_cpu

// ---- The functions that code compiled with -fsanitize=thread calls

#define AFT_TSAN_ACCESS(name, bytes, write)                            \
  void __tsan_##name(void* at) {                                       \
    cuda_on_cpu::Record(reinterpret_cast<uintptr_t>(at), bytes, write, \
                        __builtin_return_address(0));                  \
  }

// Atomics of the host's code, such as reference counts.
#define AFT_TSAN_ATOMIC(bits, T)                                                                   \
  T __tsan_atomic##bits##_load(const T* at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); } \
  void __tsan_atomic##bits##_store(T* at, T x, int) { __atomic_store_n(at, x, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_add(T* at, T x, int) {                                             \
    return __atomic_fetch_add(at, x, __ATOMIC_SEQ_CST);                                            \
  }                                                                                                \
  T __tsan_atomic##bits##_fetch_sub(T* at, T x, int) {                                             \
    return __atomic_fetch_sub(at, x, __ATOMIC_SEQ_CST);                                            \
  }

extern "C" {
AFT_TSAN_ATOMIC(8, uint8_t)
AFT_TSAN_ATOMIC(32, uint32_t)
AFT_TSAN_ATOMIC(64, uint64_t)
void __tsan_init() { cuda_on_cpu::watching = true; }
void __tsan_func_entry(void* /*caller*/) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void** /*at*/, void* /*value*/) {}
void __tsan_vptr_read(void** /*at*/) {}
void __tsan_read_range(void* at, unsigned long bytes) {
  cuda_on_cpu::Record(reinterpret_cast<uintptr_t>(at), bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* at, unsigned long bytes) {
  cuda_on_cpu::Record(reinterpret_cast<uintptr_t>(at), bytes, true, __builtin_return_address(0));
}
AFT_TSAN_ACCESS(read1, 1, false)
AFT_TSAN_ACCESS(read2, 2, false)
AFT_TSAN_ACCESS(read4, 4, false)
AFT_TSAN_ACCESS(read8, 8, false)
AFT_TSAN_ACCESS(read16, 16, false)
AFT_TSAN_ACCESS(write1, 1, true)
AFT_TSAN_ACCESS(write2, 2, true)
AFT_TSAN_ACCESS(write4, 4, true)
AFT_TSAN_ACCESS(write8, 8, true)
AFT_TSAN_ACCESS(write16, 16, true)
AFT_TSAN_ACCESS(unaligned_read2, 2, false)
AFT_TSAN_ACCESS(unaligned_read4, 4, false)
AFT_TSAN_ACCESS(unaligned_read8, 8, false)
AFT_TSAN_ACCESS(unaligned_read16, 16, false)
AFT_TSAN_ACCESS(unaligned_write2, 2, true)
AFT_TSAN_ACCESS(unaligned_write4, 4, true)
AFT_TSAN_ACCESS(unaligned_write8, 8, true)
AFT_TSAN_ACCESS(unaligned_write16, 16, true)
}
