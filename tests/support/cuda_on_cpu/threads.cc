#include "tests/support/cuda_on_cpu/threads.h"

#include <sys/mman.h>

#include <algorithm>
#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <sstream>
#include <vector>

#include "tests/support/cuda_on_cpu/include/cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(from, bytes) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(from, bytes) static_cast<void>(0)
#endif

const cuda_on_cpu::Index& threadIdx = cuda_on_cpu::current_thread;
const cuda_on_cpu::Index& blockIdx = cuda_on_cpu::current_block;
const dim3& blockDim = cuda_on_cpu::current_block_size;
const dim3& gridDim = cuda_on_cpu::current_grid_size;

namespace cuda_on_cpu {

Index current_thread;
Index current_block;
dim3 current_block_size;
dim3 current_grid_size;

namespace {

namespace context = boost::context::detail;

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kSharedAlignment = 128;
constexpr unsigned kWarp = 32;

struct Copy {
  void* to;
  std::vector<unsigned char> bytes;  // read at once: the source is constant while a kernel runs
};

enum class Waiting { kNo, kForBlock, kForWarp, kEnded };

struct Fiber {
  context::fcontext_t at = nullptr;
  unsigned char* stack = nullptr;
  void* fake_stack = nullptr;  // AddressSanitizer's
  Index index;
  Waiting waiting = Waiting::kNo;
  Site site;
  unsigned mask = 0;
  alignas(16) unsigned char given[kExchangeBytes];
  std::vector<Copy> copies;
  std::deque<std::vector<Copy>> groups;
};

struct Warp {
  alignas(16) unsigned char result[kWarp * kExchangeBytes];
};

uint64_t FirstSeed() {
  const char* given = std::getenv("AFT_TEST_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("order of CUDA threads: AFT_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

std::string Describe(const Fiber& fiber, unsigned number) {
  std::ostringstream text;
  text << "thread " << number << " ";
  switch (fiber.waiting) {
    case Waiting::kNo:
      text << "is ready";
      break;
    case Waiting::kEnded:
      text << "has ended";
      break;
    case Waiting::kForBlock:
      text << "waits for its block at ";
      break;
    case Waiting::kForWarp:
      text << "waits for lanes " << std::hex << fiber.mask << std::dec << " of its warp at ";
      break;
  }
  if (fiber.waiting == Waiting::kForBlock || fiber.waiting == Waiting::kForWarp) {
    text << fiber.site.file_name() << ":" << fiber.site.line();
  }
  return text.str();
}

bool SameSite(const Fiber& a, const Fiber& b) {
  return a.waiting == b.waiting && a.site.line() == b.site.line() &&
         a.site.column() == b.site.column() &&
         std::strcmp(a.site.file_name(), b.site.file_name()) == 0;
}

class Machine {
 public:
  bool Launch(Dim grid, Dim block, size_t shared_bytes, const std::function<void()>& thread);

  void Wait(Waiting what, Site site);
  const unsigned char* Exchange(unsigned mask, const void* value, size_t bytes, Site site);
  Fiber& running() { return fibers_[running_]; }
  unsigned lane() const { return running_ % kWarp; }
  unsigned char* shared() { return shared_.get(); }
  void Seed(uint64_t seed) { order_.seed(seed); }
  const std::string& error() const { return error_; }

 private:
  static void Start(context::transfer_t from);
  bool RunBlock();
  void Resume(unsigned fiber);
  void SwitchOut(bool last);
  bool ReleaseBlock();
  bool ReleaseWarps();
  void Fail();

  std::mt19937_64 order_{FirstSeed()};
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<unsigned char*> stacks_;
  std::unique_ptr<unsigned char, decltype(&std::free)> shared_{nullptr, &std::free};
  size_t shared_bytes_ = 0;
  const std::function<void()>* thread_ = nullptr;
  context::fcontext_t scheduler_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
  void* scheduler_fake_stack_ = nullptr;
  unsigned running_ = 0;
  std::string error_;
};

Machine& TheMachine() {
  static Machine machine;
  return machine;
}

void Machine::Start(context::transfer_t from) {
  Machine& machine = TheMachine();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &machine.scheduler_stack_,
                                  &machine.scheduler_stack_bytes_);
#endif
  machine.scheduler_ = from.fctx;
  (*machine.thread_)();
  machine.running().waiting = Waiting::kEnded;
  machine.SwitchOut(/*last=*/true);
}

void Machine::SwitchOut([[maybe_unused]] bool last) {
  [[maybe_unused]] Fiber& fiber = running();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &fiber.fake_stack, scheduler_stack_,
                                 scheduler_stack_bytes_);
#endif
  const context::transfer_t from = context::jump_fcontext(scheduler_, nullptr);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
  scheduler_ = from.fctx;
}

void Machine::Resume(unsigned number) {
  running_ = number;
  Fiber& fiber = fibers_[number];
  current_thread = fiber.index;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack_, fiber.stack, kStackBytes);
#endif
  const context::transfer_t from = context::jump_fcontext(fiber.at, nullptr);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack_, nullptr, nullptr);
#endif
  fibers_[number].at = from.fctx;
}

void Machine::Wait(Waiting what, Site site) {
  Fiber& fiber = running();
  fiber.waiting = what;
  fiber.site = site;
  SwitchOut(/*last=*/false);
}

const unsigned char* Machine::Exchange(unsigned mask, const void* value, size_t bytes, Site site) {
  Fiber& fiber = running();
  std::memcpy(fiber.given, value, bytes);
  fiber.mask = mask;
  Wait(Waiting::kForWarp, site);
  return warps_[running_ / kWarp].result;
}

// When every thread waits at the same barrier they all go on.
bool Machine::ReleaseBlock() {
  for (const Fiber& fiber : fibers_) {
    if (fiber.waiting != Waiting::kForBlock || !SameSite(fiber, fibers_[0])) return false;
  }
  for (Fiber& fiber : fibers_) fiber.waiting = Waiting::kNo;
  return true;
}

// The groups of lanes that are all there go on, with what they gave each other.
bool Machine::ReleaseWarps() {
  bool released = false;
  for (unsigned i = 0; i < fibers_.size(); ++i) {
    const Fiber& first = fibers_[i];
    if (first.waiting != Waiting::kForWarp) continue;
    const unsigned base = i / kWarp * kWarp;
    bool complete = (first.mask >> (i - base) & 1U) != 0;
    for (unsigned lane = 0; lane < kWarp && complete; ++lane) {
      if ((first.mask >> lane & 1U) == 0) continue;
      complete = base + lane < fibers_.size() && SameSite(fibers_[base + lane], first) &&
                 fibers_[base + lane].mask == first.mask;
    }
    if (!complete) continue;
    const unsigned mask = first.mask;
    unsigned char* result = warps_[i / kWarp].result;
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      unsigned char* to = result + lane * kExchangeBytes;
      if ((mask >> lane & 1U) == 0) continue;
      Fiber& fiber = fibers_[base + lane];
      std::memcpy(to, fiber.given, kExchangeBytes);
      fiber.waiting = Waiting::kNo;
    }
    released = true;
  }
  return released;
}

void Machine::Fail() {
  std::ostringstream text;
  text << "block (" << current_block.x << ", " << current_block.y << ", " << current_block.z
       << "): barrier divergence: ";
  const Fiber* shown = nullptr;
  for (unsigned i = 0; i < fibers_.size(); ++i) {  // one thread of each run that waits alike
    if (shown != nullptr && SameSite(*shown, fibers_[i])) continue;
    shown = &fibers_[i];
    text << (i == 0 ? "" : "; ") << Describe(*shown, i);
  }
  error_ = text.str();
}

bool Machine::RunBlock() {
  if (shared_bytes_ > 0) std::memset(shared_.get(), 0xFF, shared_bytes_);
  for (unsigned i = 0; i < fibers_.size(); ++i) {
    Fiber& fiber = fibers_[i];
    fiber.waiting = Waiting::kNo;
    fiber.copies.clear();
    fiber.groups.clear();
    fiber.stack = stacks_[i];
    fiber.index = {i % current_block_size.x, i / current_block_size.x % current_block_size.y,
                   i / current_block_size.x / current_block_size.y};
    ASAN_UNPOISON_MEMORY_REGION(fiber.stack, kStackBytes);
    fiber.at = context::make_fcontext(fiber.stack + kStackBytes, kStackBytes, &Machine::Start);
  }
  std::vector<unsigned> ready;
  while (true) {
    ready.clear();
    bool ended = true;
    for (unsigned i = 0; i < fibers_.size(); ++i) {
      if (fibers_[i].waiting == Waiting::kNo) ready.push_back(i);
      ended = ended && fibers_[i].waiting == Waiting::kEnded;
    }
    if (ended) break;
    if (ready.empty() && !ReleaseBlock() && !ReleaseWarps()) {
      Fail();
      break;
    }
    std::shuffle(ready.begin(), ready.end(), order_);
    for (const unsigned fiber : ready) Resume(fiber);
  }
  ASAN_UNPOISON_MEMORY_REGION(shared_.get(), shared_bytes_);
  return error_.empty();
}

bool Machine::Launch(Dim grid, Dim block, size_t shared_bytes,
                     const std::function<void()>& thread) {
  error_.clear();
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || shared_bytes > (size_t{227} << 10) || grid.x == 0 ||
      grid.y == 0 || grid.z == 0 || grid.x > 0x7FFFFFFF || grid.y > 65535 || grid.z > 65535) {
    error_ = "launch: the grid, the block or its shared memory is larger than a GPU allows";
    return false;
  }
  fibers_ = std::vector<Fiber>(threads);
  warps_.resize((threads + kWarp - 1) / kWarp);
  while (stacks_.size() < threads) {
    stacks_.push_back(
        static_cast<unsigned char*>(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)));
  }
  // Exactly as large as asked for, so that AddressSanitizer sees an access beyond it.
  void* shared = nullptr;
  if (posix_memalign(&shared, kSharedAlignment, shared_bytes) != 0) std::abort();
  shared_.reset(static_cast<unsigned char*>(shared));
  shared_bytes_ = shared_bytes;
  thread_ = &thread;
  current_block_size = dim3(block.x, block.y, block.z);
  current_grid_size = dim3(grid.x, grid.y, grid.z);
  std::vector<uint64_t> blocks(size_t{grid.x} * grid.y * grid.z);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  std::shuffle(blocks.begin(), blocks.end(), order_);
  for (const uint64_t i : blocks) {
    current_block = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                     static_cast<unsigned>(i / grid.x / grid.y)};
    if (!RunBlock()) return false;
  }
  return true;
}

void Arrive(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) std::memcpy(copy.to, copy.bytes.data(), copy.bytes.size());
}

}  // namespace

const std::string& LastError() { return TheMachine().error(); }
void SetOrderSeed(uint64_t seed) { TheMachine().Seed(seed); }
bool Run(Dim grid, Dim block, size_t shared_bytes, const std::function<void()>& thread) {
  return TheMachine().Launch(grid, block, shared_bytes, thread);
}

unsigned char* DynamicShared() { return TheMachine().shared(); }
void PoisonShared([[maybe_unused]] unsigned char* from, [[maybe_unused]] size_t bytes) {
  ASAN_POISON_MEMORY_REGION(from, bytes);
}
void SyncBlock(Site site) { TheMachine().Wait(Waiting::kForBlock, site); }
const unsigned char* ExchangeInWarp(unsigned mask, const void* value, size_t bytes, Site site) {
  return TheMachine().Exchange(mask, value, bytes, site);
}
unsigned Lane() { return TheMachine().lane(); }

void CopyAsync(void* to, const void* from, size_t bytes, size_t zeros) {
  Copy copy{to, std::vector<unsigned char>(bytes + zeros)};
  std::memcpy(copy.bytes.data(), from, bytes);
  std::memset(to, 0xFF, bytes + zeros);
  TheMachine().running().copies.push_back(std::move(copy));
}
void CommitCopies() {
  Fiber& fiber = TheMachine().running();
  fiber.groups.push_back(std::move(fiber.copies));
  fiber.copies.clear();
}
void WaitForCopies(size_t pending) {
  Fiber& fiber = TheMachine().running();
  while (fiber.groups.size() > pending) {
    Arrive(fiber.groups.front());
    fiber.groups.pop_front();
  }
}

}  // namespace cuda_on_cpu
