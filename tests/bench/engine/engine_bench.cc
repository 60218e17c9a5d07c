// A model without gRPC, in two layers: the runner alone, and the engine on top of it. Beside the
// same load over gRPC (aftload) it shows what each layer costs.
//
//   engine_bench                       the shipped model; run from the repository's root
//   AFT_MODEL=DIR engine_bench         another checkpoint

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "benchmark/benchmark.h"
#include "model/runtime/load.h"
#include "prometheus/registry.h"
#include "server/engine/engine.h"

namespace aft::server {
namespace {

constexpr int kTokens = 256;  // generated per stream
constexpr char kPrompt[] = "It is a truth universally acknowledged, that";

LoadedModel Load(int64_t step_tokens) {
  const char* dir = std::getenv("AFT_MODEL");
  LoadOptions options;
  options.checkpoint_dir = dir != nullptr ? dir : "model/zoo/austen-aft-local";
  options.slots = 64;
  options.max_step_tokens = step_tokens;
  auto model = LoadModel(options);
  if (!model.ok()) {
    std::fprintf(stderr, "engine_bench: %s\n", std::string(model.status().message()).c_str());
    std::exit(1);
  }
  return *std::move(model);
}

void BM_RunnerDecode(benchmark::State& state) {
  const LoadedModel model = Load(256);
  ModelRunner& runner = *model.runner;
  const auto rows = static_cast<int32_t>(state.range(0));
  StepInput step;
  for (int32_t slot = 0; slot < rows; ++slot) {
    SamplingParams sampling;
    sampling.seed = static_cast<uint64_t>(slot);  // each its own text
    runner.BindSlot(slot, sampling);
    step.rows.push_back(
        {.slot = slot, .first_position = 0, .tokens = {'a'}, .output = RowOutput::kLast});
  }
  for (auto _ : state) {
    const StepOutput output = *runner.Collect(*runner.Submit(step));
    for (size_t i = 0; i < step.rows.size(); ++i) {
      ++step.rows[i].first_position;
      step.rows[i].tokens[0] = output.sampled[i].id;
    }
  }
  state.SetItemsProcessed(state.iterations() * rows);
}
BENCHMARK(BM_RunnerDecode)->Arg(1)->Arg(8)->Arg(64)->UseRealTime()->Unit(benchmark::kMicrosecond);

void BM_RunnerPrefill(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const LoadedModel model = Load(tokens);
  ModelRunner& runner = *model.runner;
  StepInput step;
  step.rows.push_back({.slot = 0, .first_position = 0, .tokens = {}, .output = RowOutput::kLast});
  for (int64_t i = 0; i < tokens; ++i) step.rows[0].tokens.push_back(kPrompt[i % 40]);
  for (auto _ : state) {
    runner.BindSlot(0, {});
    benchmark::DoNotOptimize(*runner.Collect(*runner.Submit(step)));
  }
  state.SetItemsProcessed(state.iterations() * tokens);
}
BENCHMARK(BM_RunnerPrefill)
    ->Arg(64)
    ->Arg(256)
    ->Arg(1024)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// The same tokens with the log-probability of each, and `top` alternatives.
void BM_RunnerScore(benchmark::State& state) {
  constexpr int64_t kText = 256;
  const LoadedModel model = Load(kText);
  ModelRunner& runner = *model.runner;
  SamplingParams sampling;
  sampling.top_logprobs = static_cast<int32_t>(state.range(0));
  StepRow row = {.slot = 0, .tokens = {}, .output = RowOutput::kScore};
  for (int64_t i = 0; i < kText; ++i) row.tokens.push_back(kPrompt[i % 40]);
  row.targets = row.tokens;
  const StepInput step = {{row}};
  for (auto _ : state) {
    runner.BindSlot(0, sampling);
    benchmark::DoNotOptimize(*runner.Collect(*runner.Submit(step)));
  }
  state.SetItemsProcessed(state.iterations() * kText);
}
BENCHMARK(BM_RunnerScore)->Arg(0)->Arg(5)->UseRealTime()->Unit(benchmark::kMicrosecond);

// One sequence's state to another slot, and out to bytes and back.
void BM_RunnerFork(benchmark::State& state) {
  const LoadedModel model = Load(256);
  ModelRunner& runner = *model.runner;
  const StepRow row = {.slot = 0, .tokens = {'a', 'b'}};
  benchmark::DoNotOptimize(*runner.Collect(*runner.Submit({{row}})));
  for (auto _ : state) runner.ForkSlot(0, 1);
  state.SetBytesProcessed(state.iterations() * runner.info().state_bytes);
}
BENCHMARK(BM_RunnerFork)->Unit(benchmark::kMicrosecond);

void BM_RunnerSnapshotAndRestore(benchmark::State& state) {
  const LoadedModel model = Load(256);
  ModelRunner& runner = *model.runner;
  const StepRow row = {.slot = 0, .tokens = {'a', 'b'}};
  benchmark::DoNotOptimize(*runner.Collect(*runner.Submit({{row}})));
  for (auto _ : state) {
    if (!runner.RestoreSlot(1, runner.SnapshotSlot(0)).ok()) state.SkipWithError("refused");
  }
  state.SetBytesProcessed(state.iterations() * runner.info().state_bytes);
}
BENCHMARK(BM_RunnerSnapshotAndRestore)->Unit(benchmark::kMicrosecond);

// Counts down at the end of every request.
class Waiter {
 public:
  explicit Waiter(int64_t count) : left_(count) {}
  void Done() {
    MutexLock lock(mutex_);
    if (--left_ == 0) done_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(mutex_);
    while (left_ > 0) done_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar done_;
  int64_t left_ ABSL_GUARDED_BY(mutex_);
};

class CountingSink : public ResponseSink {
 public:
  explicit CountingSink(Waiter& waiter) : waiter_(waiter) {}
  bool OnDelta(TokenDelta) override { return true; }
  void OnFinished(const Outcome& outcome) override {
    first_token_ = outcome.timings.first_token;
    waiter_.Done();
  }
  Duration first_token() const { return first_token_; }

 private:
  Waiter& waiter_;
  Duration first_token_{};
};

void BM_Engine(benchmark::State& state) {
  LoadedModel model = Load(256);
  prometheus::Registry registry;
  ModelMetrics metrics(registry, "bench");
  const std::vector<TokenId> prompt = *model.tokenizer->Encode(kPrompt);
  auto engine =
      *Engine::Create({.model_name = "bench"}, std::move(model.runner), model.tokenizer, metrics);
  const int64_t streams = state.range(0);
  std::vector<double> ttft_ms;
  for (auto _ : state) {
    Waiter waiter(streams);
    std::vector<std::shared_ptr<CountingSink>> sinks;
    for (int64_t i = 0; i < streams; ++i) {
      GenerationRequest request;
      request.prompt = prompt;
      request.sampling.seed = static_cast<uint64_t>(i);
      request.stop.max_tokens = kTokens;
      request.arrival = std::chrono::steady_clock::now();
      sinks.push_back(std::make_shared<CountingSink>(waiter));
      if (!engine->Submit(std::move(request), sinks.back()).ok()) std::abort();
    }
    waiter.Wait();
    for (const auto& sink : sinks) {
      ttft_ms.push_back(std::chrono::duration<double, std::milli>(sink->first_token()).count());
    }
  }
  std::nth_element(ttft_ms.begin(), ttft_ms.begin() + ttft_ms.size() / 2, ttft_ms.end());
  state.counters["ttft_p50_ms"] = ttft_ms[ttft_ms.size() / 2];
  state.SetItemsProcessed(state.iterations() * streams * kTokens);
}
BENCHMARK(BM_Engine)->Arg(1)->Arg(8)->Arg(64)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace aft::server

BENCHMARK_MAIN();
