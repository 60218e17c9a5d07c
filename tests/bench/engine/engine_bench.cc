// Measures a model without gRPC, in two layers: the runner alone, and the engine on top of it.
// Compared with the same load over gRPC (aftload), this shows what each layer costs.
//
//   engine_bench                       the shipped model; run from the repository's root
//   AFT_MODEL=DIR engine_bench         another checkpoint
//   AFT_DEVICE=cuda:0 AFT_WEIGHT_FORMAT=bf16 AFT_SLOTS=1024 engine_bench
//                                      on a GPU, with up to 1024 streams
//   AFT_THREADS=2 engine_bench         the number of compute threads on the CPU; the default is 1
//   AFT_MEASURE_THREADS=1 AFT_THREADS=2 engine_bench
//                                      as many of them for each step as a measurement at load
//                                      chooses

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "benchmark/benchmark.h"
#include "model/api/load.h"
#include "model/sampling/sampler.h"
#include "model/state/aligned_buffer.h"
#include "prometheus/registry.h"
#include "server/engine/generate_engine.h"

namespace aft::server {
namespace {

constexpr int kTokens = 256;  // generated per stream
constexpr char kPrompt[] = "It is a truth universally acknowledged, that";

std::string FromEnvironment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

int32_t Slots() { return std::atoi(FromEnvironment("AFT_SLOTS", "64").c_str()); }
int32_t Threads() { return std::atoi(FromEnvironment("AFT_THREADS", "1").c_str()); }

// Streams: 1, 8, 64 and on, up to the slots.
void UpToSlots(benchmark::internal::Benchmark* bench) {
  for (const int64_t streams : {1, 4, 8, 16, 32, 64, 256, 1024}) {
    if (streams <= Slots()) bench->Arg(streams);
  }
}

// Rows of a step, up to the slots. The numbers next to a power of two show where a kernel begins
// another block of rows.
void RowsUpToSlots(benchmark::internal::Benchmark* bench) {
  for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 64, 256, 1024}) {
    if (rows <= Slots()) bench->Arg(rows);
  }
}

LoadedModel Load(int64_t step_tokens) {
  LoadOptions options;
  options.checkpoint_dir = FromEnvironment("AFT_MODEL", "model/zoo/austen-aft-local");
  options.device = FromEnvironment("AFT_DEVICE", "cpu");
  options.weight_format = FromEnvironment("AFT_WEIGHT_FORMAT", "fp32");
  options.slots = Slots();
  options.intra_op_threads = Threads();
  options.measure_threads = FromEnvironment("AFT_MEASURE_THREADS", "0") == "1";
  options.max_step_tokens = std::max<int64_t>(step_tokens, options.slots + 1);
  auto model = LoadModel(options);
  if (!model.ok()) {
    std::fprintf(stderr, "engine_bench: %s\n", std::string(model.status().message()).c_str());
    std::exit(1);
  }
  return *std::move(model);
}

// Loading takes longer than measuring, and every benchmark function is called several times.
// Therefore the model that was loaded last is kept, and no other.
struct Loaded {
  int64_t step_tokens = 0;
  LoadedModel model;                         // without its runner when there is an engine
  std::map<int64_t, std::string> sequences;  // snapshots, by their number of tokens
  std::unique_ptr<prometheus::Registry> registry;
  std::unique_ptr<ModelMetrics> metrics;
  std::unique_ptr<GenerateEngine> engine;
};

Loaded& Kept() {
  static Loaded kept;
  return kept;
}

void Drop() {
  Kept().engine.reset();   // first, because it uses the others
  Kept().metrics.reset();  // before the registry that they belong to
  Kept() = {};
}

ModelRunner& Runner(int64_t step_tokens) {
  Loaded& kept = Kept();
  if (kept.model.runner == nullptr || kept.step_tokens != step_tokens) {
    Drop();
    kept.model = Load(step_tokens);
    kept.step_tokens = step_tokens;
  }
  return *kept.model.runner;
}

Loaded& WithEngine() {
  Loaded& kept = Kept();
  if (kept.engine == nullptr) {
    Drop();
    kept.model = Load(256);
    kept.registry = std::make_unique<prometheus::Registry>();
    kept.metrics = std::make_unique<ModelMetrics>(*kept.registry, "bench");
    EngineOptions options;
    options.model.name = "bench";
    options.model.max_step_tokens = kept.model.runner->max_step_tokens();
    options.limits.max_queued_requests = Slots();
    kept.engine = *GenerateEngine::Create(options, std::move(kept.model.runner),
                                          kept.model.tokenizer, *kept.metrics);
  }
  return kept;
}

std::vector<TokenId> Prompt(int64_t tokens) {
  std::vector<TokenId> prompt;
  for (int64_t i = 0; i < tokens; ++i) prompt.push_back(kPrompt[i % 40]);
  return prompt;
}

void Bind(ModelRunner& runner, int32_t slot, const StateSource& from, const SlotTerms& terms) {
  if (!runner.BindSlot(slot, from, terms).ok()) std::abort();
}

void Collect(ModelRunner& runner, ModelRunner::Ticket ticket) {
  static StepOutput output;
  if (!runner.Collect(ticket, output).ok()) std::abort();
  benchmark::DoNotOptimize(output);
}

// Runs steps of one token a row, with the most steps in flight that the runner allows. From the
// second step on, a row's token is the last one that its slot sampled; the host has not seen it.
void Decode(ModelRunner& runner, StepInput step, benchmark::State& state) {
  std::deque<ModelRunner::Ticket> tickets;
  const auto submit = [&] {
    tickets.push_back(*runner.Submit(step));
    for (StepRow& row : step.rows) {
      ++row.first_position;
      row.tokens[0] = kLastSampled;
    }
  };
  const auto collect = [&] {
    Collect(runner, tickets.front());
    tickets.pop_front();
  };
  while (static_cast<int>(tickets.size()) + 1 < runner.max_steps_in_flight()) submit();
  for (auto _ : state) {
    submit();
    collect();
  }
  while (!tickets.empty()) collect();
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(step.rows.size()));
}

void BM_RunnerDecode(benchmark::State& state) {
  ModelRunner& runner = Runner(256);
  const auto rows = static_cast<int32_t>(state.range(0));
  StepInput step;
  for (int32_t slot = 0; slot < rows; ++slot) {
    SamplingParams sampling;
    sampling.seed = static_cast<uint64_t>(slot);  // each slot samples another text
    Bind(runner, slot, NewSequence(), {sampling});
    step.rows.push_back(
        {.slot = slot, .first_position = 0, .tokens = {'a'}, .output = RowOutput::kLast});
  }
  Decode(runner, std::move(step), state);
}
BENCHMARK(BM_RunnerDecode)->Apply(RowsUpToSlots)->UseRealTime()->Unit(benchmark::kMicrosecond);

// Returns a sequence of `tokens` tokens. It is made once, because 100,000 tokens take a while.
const std::string& SequenceOf(int64_t tokens) {
  ModelRunner& runner = Runner(256);
  std::string& snapshot = Kept().sequences[tokens];
  if (!snapshot.empty()) return snapshot;
  Bind(runner, 0, NewSequence(), {});
  for (int64_t first = 0; first < tokens;) {
    const int64_t count = std::min(tokens - first, runner.max_step_tokens());
    const StepRow row = {.slot = 0, .first_position = first, .tokens = Prompt(count)};
    Collect(runner, *runner.Submit({{row}}));
    first += count;
  }
  return snapshot = *(*runner.KeepSlot(0, KeptIn::kHost))->Snapshot();
}

// Measures streams at a given position of the context.
void BM_RunnerContext(benchmark::State& state) {
  const int64_t context = state.range(1);
  const std::string& sequence = SequenceOf(context);
  ModelRunner& runner = Runner(256);
  StepInput step;
  for (int32_t slot = 0; slot < state.range(0); ++slot) {
    Bind(runner, slot, sequence, {});
    step.rows.push_back(
        {.slot = slot, .first_position = context, .tokens = {'a'}, .output = RowOutput::kLast});
  }
  Decode(runner, std::move(step), state);
  state.counters["state_bytes"] = static_cast<double>(runner.info().state_bytes);
}
BENCHMARK(BM_RunnerContext)
    ->ArgNames({"streams", "context"})
    ->ArgsProduct({{1, 8, 32, 64}, {100, 1000}})
    ->Args({1, 100'000})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// Draws a token from the model's vocabulary, on the CPU. A step draws one for each of its rows.
void BM_Draw(benchmark::State& state) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(static_cast<size_t>(Runner(256).info().vocab_size));
  for (float& logit : logits) logit = normal(random);
  Sampler sampler;
  SampledToken token;
  uint64_t index = 0;
  for (auto _ : state) {
    const auto drawn = sampler.Sample(logits.data(), static_cast<int64_t>(logits.size()), {},
                                      nullptr, index++, &token);
    if (!drawn.ok()) std::abort();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Draw);

// A buffer of the weights' size, which the compute threads read. A step of one stream on the CPU
// cannot take less time than that.
AlignedBuffer& LikeWeights() {
  static AlignedBuffer weights;
  return weights;
}

void BM_ReadWeights(benchmark::State& state) {
  const int64_t share = LikeWeights().floats() / state.threads();
  const float* const mine = LikeWeights().data() + share * state.thread_index();
  const auto bytes = share * static_cast<int64_t>(sizeof(float));
  // They are all 0. glibc's memchr reads with the CPU's widest instructions.
  for (auto _ : state) {
    benchmark::DoNotOptimize(std::memchr(mine, 1, static_cast<size_t>(bytes)));
  }
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["weight_bytes"] = static_cast<double>(bytes);  // summed over the threads
}
BENCHMARK(BM_ReadWeights)
    ->Setup([](const benchmark::State&) {
      LikeWeights() = *AlignedBuffer::Create(Runner(256).info().weight_bytes / 4, "like weights");
    })
    ->Threads(Threads())
    ->Repetitions(5)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

void BM_RunnerPrefill(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  ModelRunner& runner = Runner(tokens);
  const StepInput step = {{{.slot = 0, .tokens = Prompt(tokens), .output = RowOutput::kLast}}};
  for (auto _ : state) {
    Bind(runner, 0, NewSequence(), {});
    Collect(runner, *runner.Submit(step));
  }
  state.SetItemsProcessed(state.iterations() * tokens);
}
BENCHMARK(BM_RunnerPrefill)
    ->Arg(64)
    ->Arg(256)
    ->Arg(512)
    ->Arg(1024)
    ->Arg(8192)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// Scores a text: the log-probability of each token, and of `top_logprobs` alternatives.
void BM_RunnerScore(benchmark::State& state) {
  constexpr int64_t kText = 256;
  ModelRunner& runner = Runner(kText);
  SamplingParams sampling;
  sampling.top_logprobs = static_cast<int32_t>(state.range(0));
  StepRow row = {.slot = 0, .tokens = Prompt(kText), .output = RowOutput::kScore};
  row.targets = row.tokens;
  const StepInput step = {{row}};
  for (auto _ : state) {
    Bind(runner, 0, NewSequence(), {sampling});
    Collect(runner, *runner.Submit(step));
  }
  state.SetItemsProcessed(state.iterations() * kText);
}
BENCHMARK(BM_RunnerScore)->Arg(0)->Arg(5)->UseRealTime()->Unit(benchmark::kMicrosecond);

// Copies one sequence's state to another slot, out of the slots and back, and to bytes and back.
void BM_RunnerFork(benchmark::State& state) {
  ModelRunner& runner = Runner(256);
  const StepRow row = {.slot = 0, .tokens = {'a', 'b'}};
  Collect(runner, *runner.Submit({{row}}));
  for (auto _ : state) Bind(runner, 1, ForkOf{0}, {});
  state.SetBytesProcessed(state.iterations() * runner.info().state_bytes);
}
BENCHMARK(BM_RunnerFork)->Unit(benchmark::kMicrosecond);

void BM_RunnerKeepAndBind(benchmark::State& state) {
  ModelRunner& runner = Runner(256);
  const StepRow row = {.slot = 0, .tokens = {'a', 'b'}};
  Collect(runner, *runner.Submit({{row}}));
  for (auto _ : state) {
    const auto kept = runner.KeepSlot(0, KeptIn::kDevice);
    if (!kept.ok()) std::abort();
    Bind(runner, 1, kept->get(), {});
  }
  state.SetBytesProcessed(state.iterations() * runner.info().state_bytes);
}
BENCHMARK(BM_RunnerKeepAndBind)->Unit(benchmark::kMicrosecond);

void BM_RunnerSnapshotAndRestore(benchmark::State& state) {
  ModelRunner& runner = Runner(256);
  const StepRow row = {.slot = 0, .tokens = {'a', 'b'}};
  Collect(runner, *runner.Submit({{row}}));
  for (auto _ : state) {
    Bind(runner, 1, *(*runner.KeepSlot(0, KeptIn::kHost))->Snapshot(), {});
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

class CountingSink : public TokenSink {
 public:
  explicit CountingSink(Waiter& waiter) : waiter_(waiter) {}
  absl::Status OnPart(TokenDelta) override { return absl::OkStatus(); }
  void OnFinished(const Outcome& outcome) override {
    first_token_ = outcome.timings.first_token;
    waiter_.Done();
  }
  Duration first_token() const { return first_token_; }

 private:
  Waiter& waiter_;
  Duration first_token_{};
};

// Generates kTokens tokens after `prompt` in each of the benchmark's streams.
void Generate(benchmark::State& state, const std::string& prompt_text) {
  Loaded& loaded = WithEngine();
  const std::vector<TokenId> prompt = *loaded.model.tokenizer->Encode(prompt_text);
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
      if (!loaded.engine->Generate(std::move(request), sinks.back()).ok()) std::abort();
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

void BM_Engine(benchmark::State& state) { Generate(state, kPrompt); }
BENCHMARK(BM_Engine)->Apply(UpToSlots)->UseRealTime()->Unit(benchmark::kMillisecond);

// The prompt is one token, so that the time is that of kTokens decode steps. What it takes longer
// than as many steps of the runner is the engine's own work.
void BM_EngineDecode(benchmark::State& state) { Generate(state, "a"); }
BENCHMARK(BM_EngineDecode)->Apply(RowsUpToSlots)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace aft::server

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  aft::server::Drop();  // before the CUDA driver is unloaded at the end of main
  return 0;
}
