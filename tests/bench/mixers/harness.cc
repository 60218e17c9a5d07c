// The harness of mixers_bench, and the machine's own rates to compare with.
//   taskset -c 1 mixers_bench --benchmark_filter='memory|aft_local_32/decode'
// Ratios on a busy machine: --benchmark_repetitions=9 --benchmark_enable_random_interleaving=true

#include "tests/bench/mixers/harness.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "ATen/Parallel.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/randn.h"
#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "c10/core/InferenceMode.h"
#include "model/config/tensors.h"
#include "model/state/aligned_buffer.h"
#include "model/state/state_pool.h"
#include "model/train/forms/train_form.h"
#include "tests/support/serial_executor.h"

namespace aft {
namespace {

constexpr int64_t kPoolBytes = 256 << 20;

// Numbers in [1, 2) that are valid states in fp32 and in bf16: both halves are the same bf16.
void FillState(float* data, int64_t floats) {
  uint32_t random = 1;
  for (int64_t i = 0; i < floats; ++i) {
    random = random * 1664525U + 1013904223U;
    const uint32_t half = 0x3F80U | (random >> 25U);
    const uint32_t bits = half << 16U | half;
    std::memcpy(data + i, &bits, sizeof(bits));
  }
}

void Count(benchmark::State& state, int64_t tokens, const MixerBench& bench, double state_bytes) {
  constexpr auto kRate = benchmark::Counter::kIsIterationInvariantRate;
  const int64_t floats = PackedWidth(bench.config, bench.hid) + bench.hid;
  const auto count = static_cast<double>(tokens);
  state.counters["tokens/s"] = benchmark::Counter(count, kRate);
  state.counters["elements/s"] = benchmark::Counter(count * static_cast<double>(bench.hid), kRate);
  state.counters["bytes/s"] =
      benchmark::Counter(count * (4 * static_cast<double>(floats) + state_bytes), kRate);
}

MixerTables RandomTables(const MixerBench& bench) {
  MixerTables tables;
  for (const TensorSpec& spec : ExpectedMixerTables(bench.config, bench.hid)) {
    tables[spec.name] = at::randn(spec.shape).mul_(0.1);
  }
  return tables;
}

// Everything that a benchmark of one mixer holds.
class Setup {
 public:
  explicit Setup(const MixerBench& bench) : bench_(bench), tables_(RandomTables(bench)) {
    at::set_num_threads(1);
  }

  bool Make(benchmark::State& state) {
    MixerOptions options;
    options.max_seq_len = bench_.max_seq_len;
    absl::StatusOr<std::unique_ptr<Mixer>> mixer =
        MakeMixer(bench_.config, bench_.hid, tables_, options);
    if (!mixer.ok()) {
      state.SkipWithError(mixer.status().ToString().c_str());
      return false;
    }
    mixer_ = *std::move(mixer);
    return true;
  }

  int64_t Batch(int64_t asked) const {
    return asked > 0 ? asked : kPoolBytes / StatePool::SlotBytes({mixer_->state_spec()}) + 1;
  }
  at::Tensor Packed(int64_t tokens) const {
    return at::randn({tokens, PackedWidth(bench_.config, bench_.hid)});
  }
  Workspace MakeWorkspace(int64_t floats) {
    scratch_ = *AlignedBuffer::Create(floats, "scratch");
    return {&executor_, scratch_.data(), 0};
  }

  const Mixer& mixer() const { return *mixer_; }
  const MixerTables& tables() const { return tables_; }

 private:
  const MixerBench& bench_;
  const MixerTables tables_;
  std::unique_ptr<Mixer> mixer_;
  AlignedBuffer scratch_;
  const SerialExecutor executor_;
};

void Forward(benchmark::State& state, Setup& setup, int64_t hid, int64_t rows, int64_t length,
             int64_t position) {
  StatePool pool = *StatePool::Create({setup.mixer().state_spec()}, static_cast<int32_t>(rows));
  FillState(pool.part(0).base, pool.bytes() / static_cast<int64_t>(sizeof(float)));
  std::vector<int32_t> slots(static_cast<size_t>(rows));
  std::iota(slots.begin(), slots.end(), 0);
  const std::vector<int64_t> positions(static_cast<size_t>(rows), position);
  std::vector<int64_t> offsets;
  for (int64_t r = 0; r <= rows; ++r) offsets.push_back(r * length);
  const RaggedBatch batch = {rows, slots.data(), positions.data(), offsets.data()};
  const at::Tensor random = setup.Packed(rows * length);
  // Backed by memory from the start, as the runner's activations are.
  AlignedBuffer packed = *AlignedBuffer::Create(random.numel(), "packed");
  std::copy_n(random.const_data_ptr<float>(), random.numel(), packed.data());
  AlignedBuffer y = *AlignedBuffer::Create(rows * length * hid, "y");
  const Workspace workspace = setup.MakeWorkspace(setup.mixer().scratch_floats());
  for (auto _ : state) {
    setup.mixer().Forward({packed.data(), random.size(1)}, batch, pool.part(0), {y.data(), hid},
                          workspace);
    benchmark::ClobberMemory();
  }
}

void Decode(benchmark::State& state, const MixerBench& bench, int64_t batch) {
  const c10::InferenceMode inference;
  Setup setup(bench);
  if (!setup.Make(state)) return;
  const int64_t rows = setup.Batch(batch);
  Forward(state, setup, bench.hid, rows, 1, bench.position);
  Count(state, rows, bench, bench.state_bytes);
}

void DecodePlain(benchmark::State& state, const MixerBench& bench, int64_t batch) {
  const c10::InferenceMode inference;
  Setup setup(bench);
  if (!setup.Make(state)) return;
  const int64_t rows = setup.Batch(batch);
  const PlainStep step = bench.plain(bench, setup.tables(), rows);
  const at::Tensor packed = setup.Packed(rows);
  for (auto _ : state) benchmark::DoNotOptimize(step(packed));
  Count(state, rows, bench, bench.state_bytes);
}

void Prefill(benchmark::State& state, const MixerBench& bench, int64_t length) {
  const c10::InferenceMode inference;
  Setup setup(bench);
  if (!setup.Make(state)) return;
  Forward(state, setup, bench.hid, 1, length, 0);
  Count(state, length, bench, 0);
}

void Encode(benchmark::State& state, const MixerBench& bench, int64_t length) {
  const c10::InferenceMode inference;
  Setup setup(bench);
  if (!setup.Make(state)) return;
  const int64_t offsets[] = {0, length};
  const at::Tensor packed = setup.Packed(length);
  at::Tensor y = at::empty({length, bench.hid});
  const Workspace workspace = setup.MakeWorkspace(setup.mixer().encode_scratch_floats(length));
  for (auto _ : state) {
    setup.mixer().Encode({packed.const_data_ptr<float>(), packed.size(1)}, {1, offsets},
                         {y.data_ptr<float>(), bench.hid}, workspace);
    benchmark::ClobberMemory();
  }
  Count(state, length, bench, 0);
}

void WholePlain(benchmark::State& state, const MixerBench& bench, int64_t length) {
  const c10::InferenceMode inference;
  Setup setup(bench);
  const at::Tensor packed = setup.Packed(length).unsqueeze(0);
  for (auto _ : state) {
    benchmark::DoNotOptimize(TrainForm(bench.config, packed, setup.tables()));
  }
  Count(state, length, bench, 0);
}

using Run = void (*)(benchmark::State&, const MixerBench&, int64_t);

void Register(const MixerBench& bench, const char* what, Run run, const std::string& size,
              int64_t argument) {
  benchmark::RegisterBenchmark(
      absl::StrCat(bench.name, "/", what, "/", size).c_str(),
      [bench, run, argument](benchmark::State& state) { run(state, bench, argument); });
}

// memcpy, counting bytes read and written; and a sum over the same memory. The most that a kernel
// which only moves its data can reach.
void MemoryCopy(benchmark::State& state) {
  AlignedBuffer from = *AlignedBuffer::Create(kPoolBytes / 4, "from");
  AlignedBuffer to = *AlignedBuffer::Create(kPoolBytes / 4, "to");
  std::fill_n(from.data(), kPoolBytes / 4, 1.0F);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), static_cast<size_t>(kPoolBytes));
    benchmark::ClobberMemory();
  }
  state.counters["bytes/s"] =
      benchmark::Counter(2.0 * kPoolBytes, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(MemoryCopy)->Name("memory_copy");

void MemoryRead(benchmark::State& state) {
  AlignedBuffer from = *AlignedBuffer::Create(kPoolBytes / 4, "from");
  std::fill_n(from.data(), kPoolBytes / 4, 1.0F);
  for (auto _ : state) {
    uint64_t sums[16] = {};
    for (int64_t i = 0; i < kPoolBytes / 8; i += 16) {
      for (int64_t j = 0; j < 16; ++j) {
        uint64_t bits = 0;
        std::memcpy(&bits, from.data() + (i + j) * 2, sizeof(bits));
        sums[j] += bits;
      }
    }
    benchmark::DoNotOptimize(std::accumulate(sums, sums + 16, uint64_t{0}));
  }
  state.counters["bytes/s"] =
      benchmark::Counter(1.0 * kPoolBytes, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(MemoryRead)->Name("memory_read");

}  // namespace

bool RegisterMixerBenches(const std::vector<MixerBench>& benches) {
  for (const MixerBench& bench : benches) {
    for (const int64_t batch : bench.config.causal ? bench.batches : std::vector<int64_t>()) {
      const std::string size = batch > 0 ? absl::StrCat("B:", batch) : "B:256MB";
      Register(bench, "decode", Decode, size, batch);
      if (bench.plain) Register(bench, "decode_plain", DecodePlain, size, batch);
    }
    for (const int64_t length : bench.lengths) {
      const std::string size = absl::StrCat("T:", length);
      if (bench.config.causal) Register(bench, "prefill", Prefill, size, length);
      Register(bench, bench.config.causal ? "prefill_plain" : "encode_plain", WholePlain, size,
               length);
      Register(bench, "encode", Encode, size, length);
    }
  }
  return true;
}

}  // namespace aft

BENCHMARK_MAIN();
