// Tests that decoding allocates no memory on any thread, neither in the engine nor in the model.

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "c10/core/CPUAllocator.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "server/engine/generate_engine.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/fake_tokenizer.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

}  // namespace

// A sanitizer has allocation functions of its own, so nothing is counted there.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define AFT_COUNTS_ALLOCATIONS

// The functions of the C library, counted. Operator new, AlignedBuffer and LibTorch's libraries all
// reach these definitions, because the dynamic linker searches the program first.
extern "C" {

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): glibc's own names
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

void* malloc(size_t size) noexcept {
  if (counting) ++allocations;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) noexcept {
  if (counting) ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) noexcept {
  if (counting) ++allocations;
  return __libc_realloc(memory, size);
}
void* aligned_alloc(size_t alignment, size_t size) noexcept {
  if (counting) ++allocations;
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, size_t alignment, size_t size) noexcept {
  if (counting) ++allocations;
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}

}  // extern "C"
#endif

namespace aft::server {
namespace {

constexpr uint32_t kFirst = 20;  // counted from this token on
constexpr uint32_t kLast = 70;   // to this one
constexpr int32_t kTokens = 80;

std::atomic<int> counted_parts{0};  // The parts that any sink got while allocations were counted.

// Counts allocations from its token kFirst to its token kLast if it is the first sink.
class CountingSink final : public TokenSink {
 public:
  // The engine stops at the first token until `all_there` is set.
  CountingSink(bool first, std::shared_future<void> all_there)
      : first_(first), all_there_(std::move(all_there)) {}

  absl::Status OnPart(TokenDelta part) override {
    all_there_.wait();
    tokens_ += static_cast<int>(part.tokens.size());
    if (first_ && part.first_index >= kFirst) counting = part.first_index < kLast;
    if (counting) ++counted_parts;
    return absl::OkStatus();
  }
  void OnFinished(const Outcome& outcome) override {
    MutexLock lock(mutex_);
    ok_ = outcome.status.ok();
    ended_ = true;
    changed_.NotifyAll();
  }
  // Waits for the end. Returns whether all tokens have come.
  bool Wait() {
    MutexLock lock(mutex_);
    while (!ended_) changed_.Wait(mutex_);
    return ok_ && tokens_ == kTokens;
  }

 private:
  const bool first_;
  const std::shared_future<void> all_there_;
  std::atomic<int> tokens_{0};
  Mutex mutex_;
  CondVar changed_;
  bool ended_ = false;
  bool ok_ = false;
};

class SteadyDecodeTest : public RunnerFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  SteadyDecodeTest() {
    config_ = GetParam().config;
    options_.intra_op_threads = 2;
  }

  GenerationRequest Request(size_t prompt, const SamplingParams& sampling) {
    GenerationRequest request;
    request.arrival = std::chrono::steady_clock::now();
    request.prompt = RandomText(prompt);
    request.sampling = sampling;
    request.stop.max_tokens = kTokens;
    request.stop.ignore_eos = true;
    request.stop.strings = {"a string that does not come"};
    return request;
  }
};

TEST_P(SteadyDecodeTest, AllocatesNothing) {
  prometheus::Registry registry;
  ModelMetrics metrics(registry, "random");
  EngineOptions options;
  options.model.max_step_tokens = options_.max_step_tokens;
  const auto engine =
      *GenerateEngine::Create(options, Load(), std::make_shared<FakeTokenizer>(), metrics);
  SamplingParams greedy;
  greedy.temperature = 0;
  SamplingParams penalties = Warm(3);
  penalties.repetition_penalty = 1.2F;
  penalties.frequency_penalty = 0.1F;
  penalties.top_logprobs = -1;
  SamplingParams nucleus = penalties;
  nucleus.top_p = 0.9F;
  nucleus.top_k = 30;
  SamplingParams rules = Warm(4);
  rules.top_logprobs = -1;
  rules.rules = std::make_shared<LogitRules>(
      LogitRules{.rules = {{.id = 1, .bias = kBannedBias}, {.id = 2, .bias = 1.5F}}});
  std::promise<void> all_there;
  const std::shared_future<void> future = all_there.get_future().share();
  std::vector<std::shared_ptr<CountingSink>> sinks;
  allocations = 0;
  counted_parts = 0;
  for (const SamplingParams& sampling : {greedy, penalties, nucleus, rules}) {
    sinks.push_back(std::make_shared<CountingSink>(sinks.empty(), future));
    ASSERT_TRUE(engine->Generate(Request(5 + sinks.size(), sampling), sinks.back()).ok());
  }
  all_there.set_value();
  for (const auto& sink : sinks) EXPECT_TRUE(sink->Wait());
  EXPECT_EQ(allocations, 0);
  EXPECT_GT(counted_parts, 40);
}

INSTANTIATE_TEST_SUITE_P(Property, SteadyDecodeTest, testing::ValuesIn(DecoderCases()), CaseName);

#ifdef AFT_COUNTS_ALLOCATIONS
int64_t AllocationsOf(void (*allocate)()) {
  allocations = 0;
  counting = true;
  allocate();
  counting = false;
  return allocations;
}

TEST(CountedAllocationsTest, IncludeAllWaysToMemory) {
  const auto of_new = [] {
    void* volatile memory = operator new(1);
    operator delete(memory);
  };
  const auto of_aligned_new = [] {
    constexpr std::align_val_t kLine{64};
    void* volatile memory = operator new(1, kLine);
    operator delete(memory, kLine);
  };
  const auto of_aligned_buffers = [] {
    void* volatile memory = std::aligned_alloc(64, 64);
    std::free(memory);
  };
  const auto of_tensors = [] { c10::GetCPUAllocator()->allocate(64); };
  EXPECT_GT(AllocationsOf(of_new), 0);
  EXPECT_GT(AllocationsOf(of_aligned_new), 0);
  EXPECT_GT(AllocationsOf(of_aligned_buffers), 0);
  EXPECT_GT(AllocationsOf(of_tensors), 0);
}
#endif

}  // namespace
}  // namespace aft::server
