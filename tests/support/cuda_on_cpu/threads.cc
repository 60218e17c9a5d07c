#include "tests/support/cuda_on_cpu/threads.h"

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <random>
#include <sstream>
#include <utility>
#include <vector>

#include "tests/support/cuda_on_cpu/fiber.h"
#include "tests/support/cuda_on_cpu/include/cuda_runtime.h"
#include "tests/support/cuda_on_cpu/launch_log.h"

const cuda_on_cpu::Index& threadIdx = cuda_on_cpu::current_thread;
const cuda_on_cpu::Index& blockIdx = cuda_on_cpu::current_block;
const dim3& blockDim = cuda_on_cpu::current_block_size;
const dim3& gridDim = cuda_on_cpu::current_grid_size;

namespace cuda_on_cpu {

Index current_thread;
Index current_block;
dim3 current_block_size;
dim3 current_grid_size;
Moment current_moment;

namespace {

constexpr size_t kSharedAlignment = 128;
constexpr unsigned kWarp = 32;
constexpr size_t kMaxCopy = 16;

enum class Waiting { kNo, kForBlock, kForWarp, kEnded };

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  size_t zeros;
  size_t group;
  bool read;  // the source was read at once: the bytes are in `data`
  unsigned char data[kMaxCopy];
};

// Lives as long as the process: its fiber runs one CUDA thread after another.
struct Thread {
  Thread(void (*run)(), unsigned given_number) : number(given_number), fiber(run, given_number) {}

  const unsigned number;
  Index index;
  Waiting waiting = Waiting::kNo;
  Site site;
  std::vector<Copy> copies;
  size_t groups = 0;  // committed groups of copies
  Fiber fiber;
};

// A barrier at which threads wait for each other.
struct Meeting {
  unsigned present = 0;
  Site site;
  bool same = true;  // all came to the same place

  // Adds a thread that comes to the barrier at `at`. True when all `members` are here.
  bool Join(Site at, unsigned members);
};

struct Warp {
  Meeting meeting;
  uint32_t barriers = 0;  // number of __syncwarp that all lanes have passed
  unsigned turn = 0;  // the part of `given` that is being filled; lanes may still read the other
  alignas(16) unsigned char given[2][kWarp * kExchangeBytes];
};

// Unwinds the threads of a launch that has failed.
struct Cancelled {};

bool SamePlace(Site a, Site b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

bool Meeting::Join(Site at, unsigned members) {
  if (present == 0) {
    site = at;
    same = true;
  }
  same = same && SamePlace(site, at);
  if (++present < members) return false;
  present = 0;
  return true;
}

// Copies a value. For the usual sizes, which the compiler knows, it calls no memcpy:
// AddressSanitizer would check that call once more.
void Give(void* to, const void* value, size_t bytes) {
  if (bytes == sizeof(float)) {
    std::memcpy(to, value, sizeof(float));
  } else if (bytes == 24) {  // the operands of a matrix product
    std::memcpy(to, value, 24);
  } else {
    std::memcpy(to, value, bytes);
  }
}

uint64_t FirstSeed() {
  const char* given = std::getenv("AFT_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : uint64_t{1};
}

class Machine {
 public:
  bool Launch(Dim grid, Dim block, size_t shared_bytes, const std::function<void()>& thread,
              const void* kernel);
  [[noreturn]] void Stop(const std::string& why);

  void SyncBlock(Site site);
  const unsigned char* Exchange(unsigned mask, const void* value, size_t bytes, Site site);
  void PoisonShared(unsigned char* from, size_t bytes);
  void SyncWarp(unsigned mask, Site site);
  void FailAtEnd(const std::string& why);

  Thread& running() { return *running_; }
  unsigned char* shared() { return shared_.get(); }
  void Seed(uint64_t seed) { random_ = seed; }
  const std::string& error() const { return error_; }
  uint64_t Random(uint64_t below);

 private:
  static void RunThreads();
  bool RunBlock();
  void RunThread();
  void Wait(Waiting what, Site site);
  void SetRunning(Thread& next);
  void SwitchTo(Thread& next);
  void Yield();
  Thread& TakeReady();
  void Cancel(const std::string& why);
  std::string Divergence() const;
  std::string Where() const;

  uint64_t random_ = FirstSeed();
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  unsigned count_ = 0;  // threads of a block
  unsigned ended_ = 0;
  Meeting block_;
  std::vector<Thread*> ready_;
  Thread* running_ = nullptr;
  Fiber host_;
  std::unique_ptr<unsigned char, decltype(&std::free)> shared_{nullptr, &std::free};
  size_t shared_bytes_ = 0;
  size_t gap_bytes_ = 0;  // bytes of shared memory that were made inaccessible
  const std::function<void()>* thread_ = nullptr;
  bool cancelled_ = false;
  std::string error_;
};

Machine& TheMachine() {
  static Machine& machine = *new Machine;  // suspended fibers refer to it
  return machine;
}

// SplitMix64. `below` at most 2^32.
uint64_t Machine::Random(uint64_t below) {
  uint64_t x = random_ += 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return ((x ^ x >> 31) >> 32) * below >> 32;
}

// ---- Which thread runs

void Machine::RunThreads() {
  Machine& machine = TheMachine();
  while (true) machine.RunThread();
}

// Runs one CUDA thread from its start to its end, then switches to the next fiber.
void Machine::RunThread() {
  try {
    if (!cancelled_) (*thread_)();
  } catch (const Cancelled&) {
  } catch (const std::exception& exception) {
    Cancel(Where() + "it throws: " + exception.what());
  }
  Thread& self = *running_;
  self.waiting = Waiting::kEnded;
  ++ended_;
  if (ready_.empty() && ended_ < count_) Cancel(Divergence());
  if (ready_.empty()) {
    Fiber::Switch(self.fiber, host_);
  } else {
    SwitchTo(TakeReady());
  }
}

Thread& Machine::TakeReady() {
  std::swap(ready_[Random(ready_.size())], ready_.back());
  Thread& taken = *ready_.back();
  ready_.pop_back();
  return taken;
}

void Machine::SetRunning(Thread& next) {
  running_ = &next;
  current_thread = next.index;
  current_moment.thread = next.number;
  current_moment.warp_barriers = warps_[next.number / kWarp].barriers;
}

void Machine::SwitchTo(Thread& next) {
  if (&next == running_) return;
  Fiber& from = running_->fiber;
  SetRunning(next);
  Fiber::Switch(from, next.fiber);
}

// Lets any ready thread run. It may be this one, if it is ready.
void Machine::Yield() {
  SwitchTo(TakeReady());
  if (cancelled_) throw Cancelled();
}

// Waits until another thread makes this one ready.
void Machine::Wait(Waiting what, Site site) {
  Thread& self = *running_;
  self.waiting = what;
  self.site = site;
  if (ready_.empty()) Stop(Divergence());
  Yield();
}

// Lets the launch fail. Every thread continues only to unwind its stack.
void Machine::Cancel(const std::string& why) {
  if (cancelled_) return;
  if (error_.empty()) error_ = why;
  cancelled_ = true;
  ready_.clear();
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    if (&thread != running_ && thread.waiting != Waiting::kEnded) ready_.push_back(&thread);
  }
}

void Machine::Stop(const std::string& why) {
  Cancel(why);
  throw Cancelled();
}

// ---- Where threads meet

void Machine::SyncBlock(Site site) {
  const bool all = block_.Join(site, count_);
  if (all && block_.same) {
    ++current_moment.block_barriers;
    for (unsigned i = 0; i < count_; ++i) {
      threads_[i]->waiting = Waiting::kNo;
      ready_.push_back(threads_[i].get());
    }
    Yield();
  } else {
    Wait(Waiting::kForBlock, site);
  }
}

const unsigned char* Machine::Exchange(unsigned mask, const void* value, size_t bytes, Site site) {
  Thread& self = *running_;
  if (mask != 0xFFFFFFFF) {
    std::ostringstream text;
    text << Where() << "a warp operation of lanes " << std::hex << mask << ", not of all, at "
         << site.file_name() << ":" << std::dec << site.line();
    Stop(text.str());
  }
  Warp& warp = warps_[self.number / kWarp];
  Give(warp.given[warp.turn] + self.number % kWarp * kExchangeBytes, value, bytes);
  const bool all = warp.meeting.Join(site, kWarp);
  if (all && warp.meeting.same) {
    warp.turn ^= 1U;
    const unsigned first = self.number / kWarp * kWarp;
    for (unsigned i = first; i < first + kWarp; ++i) {
      threads_[i]->waiting = Waiting::kNo;
      if (i != self.number) ready_.push_back(threads_[i].get());
    }
    // In three of four cases the last lane to come continues at once, because switches cost time.
    if (Random(4) == 0) {
      ready_.push_back(&self);
      Yield();
    }
  } else {
    Wait(Waiting::kForWarp, site);
  }
  return warp.given[warp.turn ^ 1U];
}

// A lane that has not continued yet counts as having passed the barrier: it does nothing until it
// continues.
void Machine::SyncWarp(unsigned mask, Site site) {
  Warp& warp = warps_[running_->number / kWarp];
  const uint32_t before = warp.barriers;
  const char nothing = 0;
  Exchange(mask, &nothing, sizeof(nothing), site);
  if (warp.barriers == before) ++warp.barriers;
  current_moment.warp_barriers = warp.barriers;
}

void Machine::FailAtEnd(const std::string& why) {
  if (error_.empty()) error_ = why;
}

std::string Machine::Where() const {
  std::ostringstream text;
  text << "block (" << current_block.x << ", " << current_block.y << ", " << current_block.z
       << "), thread (" << current_thread.x << ", " << current_thread.y << ", " << current_thread.z
       << "): ";
  return text.str();
}

// Describes what every thread waits for when no thread can continue.
std::string Machine::Divergence() const {
  struct Group {
    const Thread* first;
    unsigned size;
  };
  std::vector<Group> groups;
  for (unsigned i = 0; i < count_; ++i) {
    const Thread* const thread = threads_[i].get();
    const auto alike = [&](const Group& group) {
      return group.first->waiting == thread->waiting &&
             (thread->waiting == Waiting::kEnded || SamePlace(group.first->site, thread->site));
    };
    const auto group = std::find_if(groups.begin(), groups.end(), alike);
    if (group == groups.end()) {
      groups.push_back({thread, 1});
    } else {
      ++group->size;
    }
  }
  std::ostringstream text;
  text << "block (" << current_block.x << ", " << current_block.y << ", " << current_block.z
       << "): barrier divergence";
  for (const auto& [first, size] : groups) {
    text << (first == groups.front().first ? ": " : "; ") << size << " threads (first "
         << first->number << ") ";
    if (first->waiting == Waiting::kEnded) {
      text << "have ended";
    } else {
      text << "wait for their " << (first->waiting == Waiting::kForWarp ? "warp" : "block")
           << " at " << first->site.file_name() << ":" << first->site.line();
    }
  }
  return text.str();
}

// ---- Blocks and grids

bool Machine::RunBlock() {
  if (shared_bytes_ > 0) std::memset(shared_.get(), 0xFF, shared_bytes_);
  gap_bytes_ = 0;
  ended_ = 0;
  block_.present = 0;
  current_moment.block_barriers = 0;
  ++current_moment.block;
  for (Warp& warp : warps_) {
    warp.meeting.present = 0;
    warp.barriers = 0;
  }
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    thread.waiting = Waiting::kNo;
    thread.copies.clear();
    thread.groups = 0;
    thread.index = {i % current_block_size.x, i / current_block_size.x % current_block_size.y,
                    i / current_block_size.x / current_block_size.y};
    ready_.push_back(&thread);
  }
  SetRunning(TakeReady());
  current_moment.running = true;
  Fiber::Switch(host_, running_->fiber);
  current_moment.running = false;
  running_ = nullptr;
  __asan_unpoison_memory_region(shared_.get(), shared_bytes_);
  return !cancelled_;
}

bool Machine::Launch(Dim grid, Dim block, size_t shared_bytes, const std::function<void()>& thread,
                     const void* kernel) {
  if (running_ != nullptr) Stop(Where() + "a kernel launches a kernel");
  error_.clear();
  cancelled_ = false;
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || shared_bytes > kMostShared || grid.x == 0 ||
      grid.y == 0 || grid.z == 0 || grid.x > 0x7FFFFFFF || grid.y > 65535 || grid.z > 65535) {
    error_ = "launch: the grid, the block or its shared memory is larger than a GPU allows";
    return false;
  }
  if (threads % kWarp != 0) {
    error_ = "launch: a block is not a whole number of warps";
    return false;
  }
  count_ = static_cast<unsigned>(threads);
  while (threads_.size() < threads) {
    threads_.push_back(
        std::make_unique<Thread>(&Machine::RunThreads, static_cast<unsigned>(threads_.size())));
  }
  warps_.resize(threads / kWarp);
  // The memory has exactly the requested size, so that AddressSanitizer sees an access beyond it.
  void* shared = nullptr;
  if (posix_memalign(&shared, kSharedAlignment, shared_bytes) != 0) std::abort();
  shared_.reset(static_cast<unsigned char*>(shared));
  shared_bytes_ = shared_bytes;
  WatchMemory(shared, shared_bytes, /*shared=*/true);
  current_moment.first_of_launch = current_moment.block + 1;
  thread_ = &thread;
  current_block_size = dim3(block.x, block.y, block.z);
  current_grid_size = dim3(grid.x, grid.y, grid.z);
  std::vector<uint64_t> blocks(size_t{grid.x} * grid.y * grid.z);
  for (size_t i = 0; i < blocks.size(); ++i) {  // Fisher and Yates
    const uint64_t j = Random(i + 1);
    blocks[i] = blocks[j];
    blocks[j] = i;
  }
  for (const uint64_t i : blocks) {
    current_block = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                     static_cast<unsigned>(i / grid.x / grid.y)};
    if (!RunBlock()) break;
  }
  ForgetMemory(shared);
  shared_.reset();
  if (!error_.empty()) return false;
  LogLaunch(kernel, threads, shared_bytes_ - gap_bytes_);
  return true;
}

void Machine::PoisonShared(unsigned char* from, size_t bytes) {
  if (bytes == 0 || __asan_address_is_poisoned(from) != 0) return;  // another thread has done it
  gap_bytes_ += bytes;
  __asan_poison_memory_region(from, bytes);
}

size_t shared_limit = kMostShared;

}  // namespace

size_t SharedLimit() { return shared_limit; }
void SetSharedLimit(size_t bytes) { shared_limit = bytes; }
const std::string& LastError() { return TheMachine().error(); }
void SetOrderSeed(uint64_t seed) { TheMachine().Seed(seed); }
bool Run(Dim grid, Dim block, size_t shared_bytes, const std::function<void()>& thread,
         const void* kernel) {
  return TheMachine().Launch(grid, block, shared_bytes, thread, kernel);
}

unsigned char* DynamicShared() { return TheMachine().shared(); }
void PoisonShared(unsigned char* from, size_t bytes) { TheMachine().PoisonShared(from, bytes); }
void SyncBlock(Site site) { TheMachine().SyncBlock(site); }
const unsigned char* ExchangeInWarp(unsigned mask, const void* value, size_t bytes, Site site) {
  return TheMachine().Exchange(mask, value, bytes, site);
}
void SyncWarp(unsigned mask, Site site) { TheMachine().SyncWarp(mask, site); }
void FailAtEnd(const std::string& why) { TheMachine().FailAtEnd(why); }
unsigned Lane() { return TheMachine().running().number % kWarp; }

void CopyAsync(void* to, const void* from, size_t bytes, size_t zeros) {
  Machine& machine = TheMachine();
  const size_t size = bytes + zeros;
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(to) | (bytes > 0 ? reinterpret_cast<uintptr_t>(from) : 0);
  if ((size != 4 && size != 8 && size != 16) || addresses % size != 0) {
    machine.Stop("cp.async: a size other than 4, 8 or 16, or an address not aligned to it");
  }
  Thread& thread = machine.running();
  Copy copy{to, from, bytes, zeros, thread.groups, machine.Random(2) == 0, {}};
  if (bytes > 0) std::memcpy(copy.data, from, bytes);  // always: it must be accessible now
  std::memset(to, 0xFF, size);
  RecordAccess(from, bytes, /*write=*/false);
  RecordAccess(to, size, /*write=*/true);
  thread.copies.push_back(copy);
}
void CommitCopies() { ++TheMachine().running().groups; }
void WaitForCopies(size_t pending) {
  Thread& thread = TheMachine().running();
  const auto arrives = [&](const Copy& copy) { return copy.group + pending < thread.groups; };
  auto copy = thread.copies.begin();
  for (; copy != thread.copies.end() && arrives(*copy); ++copy) {
    std::memcpy(copy->to, copy->read ? copy->data : copy->from, copy->bytes);
    std::memset(static_cast<unsigned char*>(copy->to) + copy->bytes, 0, copy->zeros);
    RecordAccess(copy->to, copy->bytes + copy->zeros, /*write=*/true);
  }
  thread.copies.erase(thread.copies.begin(), copy);
}

}  // namespace cuda_on_cpu
