#include "model/runtime/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aft {
namespace {

// The number of pieces into which n items are cut: one for each thread, if each piece then has at
// least `grain` items. With a few times more items there are several pieces per thread, so that a
// thread that is late costs less.
int32_t Pieces(int64_t n, int64_t grain, int64_t threads) {
  constexpr int64_t kMost = 4;  // of a thread
  if (threads == 1) return 1;
  const int64_t grains = n / grain;
  if (grains < threads) return static_cast<int32_t>(std::max<int64_t>(grains, 1));
  return static_cast<int32_t>(threads * std::clamp<int64_t>(grains / (threads * kMost), 1, kMost));
}

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` takes no time on most cores
#endif
}

// Waits for `condition`. False after about 25 us: the thread should sleep now. It does not call
// sched_yield in between, because the kernel then takes the rest of its time slice away.
template <typename Condition>
bool SpinUntil(Condition condition) {
  constexpr int kSpins = 1000;
  for (int i = 0; i < kSpins; ++i) {
    if (condition()) return true;
    Pause();
  }
  return false;
}

void PlaceThread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  AFT_CHECK(pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0);
}

}  // namespace

ParallelExecutor::ParallelExecutor(int threads, std::vector<int> cpus)
    : cpus_(std::move(cpus)), shares_(static_cast<size_t>(threads)), used_(threads) {
  AFT_CHECK(threads >= 1);
  try {
    for (int i = 1; i < threads; ++i) {
      workers_.emplace_back([this, i] { Work(i); });
    }
  } catch (...) {  // a thread that is not joined would end the process
    Stop();
    throw;
  }
}

ParallelExecutor::~ParallelExecutor() { Stop(); }

void ParallelExecutor::Stop() {
  {
    const MutexLock lock(mutex_);
    stop_.store(true);
  }
  used_changed_.NotifyAll();
  parts_.fetch_add(1);
  parts_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ParallelExecutor::PlaceCaller() const {
  if (!cpus_.empty()) PlaceThread(cpus_[0]);
}

ParallelExecutor::PlacedCaller::PlacedCaller(const ParallelExecutor& executor)
    : placed_(!executor.cpus_.empty()) {
  // A machine may have more CPUs than a cpu_set_t holds. `cpus_` is empty there.
  if (!placed_) return;
  AFT_CHECK(pthread_getaffinity_np(pthread_self(), sizeof(before_), &before_) == 0);
  executor.PlaceCaller();
}

ParallelExecutor::PlacedCaller::~PlacedCaller() {
  if (placed_) pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
}

void ParallelExecutor::Use(int threads) {
  AFT_CHECK(threads >= 1 && threads <= this->threads());
  const int before = used_.load(std::memory_order_relaxed);
  if (threads == before) return;
  {
    const MutexLock lock(mutex_);
    used_.store(threads);
  }
  if (threads > before) used_changed_.NotifyAll();
}

void ParallelExecutor::For(int64_t n, int64_t grain, Fn fn) const {
  if (n <= 0) return;
  const int used = used_.load(std::memory_order_relaxed);
  const int32_t pieces = Pieces(n, std::max<int64_t>(grain, 1), used);
  if (pieces == 1) return fn(0, n, 0);
  int32_t first = 0;
  for (int i = 0; i < used; ++i) {
    Share& share = shares_[static_cast<size_t>(i)];
    share.end = pieces * (i + 1) / used;
    share.pieces = pieces;
    share.n = n;
    share.fn = &fn;
    share.left.store(share.end - first, std::memory_order_release);
    first = share.end;
  }
  parts_.fetch_add(1);  // before notify_all looks for threads that sleep
  parts_.notify_all();
  // All pieces have begun when RunPieces returns.
  done_before_ += static_cast<uint32_t>(pieces - RunPieces(0));
  while (!SpinUntil([this] { return done_.load(std::memory_order_acquire) == done_before_; })) {
    const uint32_t done = done_.load(std::memory_order_acquire);
    if (done != done_before_) done_.wait(done, std::memory_order_acquire);
  }
  if (failed_.exchange(false)) std::rethrow_exception(std::exchange(failure_, nullptr));
}

int32_t ParallelExecutor::RunPieces(int thread) const {
  int32_t run = 0;
  for (int i = 0; i < threads(); ++i) {
    Share& share = shares_[static_cast<size_t>((thread + i) % threads())];
    while (share.left.load(std::memory_order_relaxed) > 0) {
      const int32_t left = share.left.fetch_sub(1, std::memory_order_acq_rel);
      if (left <= 0) break;
      const int64_t piece = share.end - left;
      try {
        (*share.fn)(share.n * piece / share.pieces, share.n * (piece + 1) / share.pieces, thread);
      } catch (...) {  // other threads may still be in fn, so For must not be left here
        if (!failed_.exchange(true)) failure_ = std::current_exception();
      }
      ++run;
    }
  }
  return run;
}

void ParallelExecutor::WaitForShare(int thread, uint32_t parts) const {
  const std::atomic<int32_t>& left = shares_[static_cast<size_t>(thread)].left;
  if (SpinUntil([&left] { return left.load(std::memory_order_relaxed) > 0; })) return;
  if (thread < used_.load()) return parts_.wait(parts);
  const MutexLock lock(mutex_);
  while (thread >= used_.load() && !stop_.load()) used_changed_.Wait(mutex_);
}

void ParallelExecutor::Work(int thread) const {
  if (!cpus_.empty()) PlaceThread(cpus_[static_cast<size_t>(thread) % cpus_.size()]);
  for (;;) {
    // This comes first, so that the thread does not sleep through a part that begins, or a stop,
    // after this line.
    const uint32_t parts = parts_.load();
    if (stop_.load()) return;
    const int32_t run = RunPieces(thread);
    if (run == 0) {
      WaitForShare(thread, parts);
      continue;
    }
    done_.fetch_add(static_cast<uint32_t>(run), std::memory_order_release);
    done_.notify_one();
  }
}

}  // namespace aft
