// Every mixer on one thread, and the machine's own rates to compare with. A mixer becomes
//
//   NAME/decode/B:n        one step of n sequences, each in a slot of its own; B:256MB: as many as
//   fill
//                          a pool of that size, beyond every cache
//   NAME/prefill/T:n       Forward of one prompt of n tokens
//   NAME/encode/T:n        the same by Encode; the only one when the mixer is not causal
//   NAME/pairs/T:n         the same with a mask of pairs, by EncodePairs
//   NAME/plain/T:n         the same by TrainForm, without gradients: plain LibTorch operators
//
// elements/s counts outputs (tokens * hid); bytes/s what a decode step must read and write at
// least, so that it compares with memory_copy and memory_read.
//
//   taskset -c 1 mixers_bench --benchmark_filter='memory|aft_local_window=32/decode'
// Ratios on a busy machine: --benchmark_repetitions=9 --benchmark_enable_random_interleaving=true

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/randn.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "benchmark/benchmark.h"
#include "c10/core/InferenceMode.h"
#include "model/config/tensors.h"
#include "model/mixers/mixer.h"
#include "model/runtime/parallel.h"
#include "model/state/aligned_buffer.h"
#include "model/state/state_pool.h"
#include "model/train/forms/train_form.h"
#include "tests/support/mixer_of.h"

namespace aft {
namespace {

constexpr int64_t kPoolBytes = 256 << 20;
constexpr int64_t kHid = 512;
constexpr int64_t kMaxLength = 4096;  // for mixers whose state grows

// Heads of 1 to 512 channels; keys of one token or of a long context; all with 8 heads of
// attention.
constexpr const char* kMixers[] = {
    "aft_simple",
    "aft_local window=1",
    "aft_local window=32",
    "aft_local window=32 ring=bf16",
    "aft_local window=128",
    "aft_local window=128 ring=bf16",
    "aft_local window=256",
    "aft_local window=1024",
    "aft_full bias=full band_rows=2048",
    "aft_conv window=31 heads=512",
    "aft_conv window=31 heads=64",
    "aft_conv window=31 heads=32",
    "aft_conv window=31 heads=32 ring=bf16",
    "aft_conv window=31 heads=8",
    "aft_conv window=31 heads=1",
    "block_local block_size=128 heads=8",
    "dot_product heads=8",
    "cosine heads=8",
    "additive heads=8 score_width=32",
    "additive heads=8 score_width=64",
    "location band_rows=4096",
};

// For block_local the position is at the end of a block; for the others any position is right.
int64_t DecodedPosition(const MixerConfig& config) { return StateGrows(config) ? 4000 : 1023; }

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

void Count(benchmark::State& state, int64_t tokens, const MixerConfig& config,
           int64_t state_bytes) {
  const auto per_second = [&state, tokens](const char* name, int64_t each) {
    state.counters[name] = benchmark::Counter(static_cast<double>(tokens * each),
                                              benchmark::Counter::kIsIterationInvariantRate);
  };
  per_second("tokens/s", 1);
  per_second("elements/s", kHid);
  per_second("bytes/s", 4 * (PackedWidth(config, kHid) + kHid) + state_bytes);
}

MixerTables RandomTables(const MixerConfig& config) {
  MixerTables tables;
  for (const TensorSpec& spec : ExpectedMixerTables(config, kHid)) {
    tables[spec.name] = at::randn(spec.shape).mul_(0.1);
  }
  return tables;
}

// Everything that a benchmark of one mixer holds.
struct Setup {
  explicit Setup(const MixerConfig& c) : config(c), tables(RandomTables(c)) {
    at::set_num_threads(1);
    MixerOptions options;
    options.max_seq_len = StateGrows(config) ? kMaxLength : 0;
    mixer = *MakeMixer(config, kHid, tables, options);
  }

  at::Tensor Packed(int64_t tokens) const { return at::randn({tokens, PackedWidth(config, kHid)}); }
  Workspace MakeWorkspace(int64_t floats) {
    scratch = *AlignedBuffer::Create(floats, "scratch");
    return {&executor, scratch.data(), 0};
  }

  const c10::InferenceMode inference;
  const MixerConfig& config;
  const MixerTables tables;
  std::unique_ptr<Mixer> mixer;
  AlignedBuffer scratch;
  const ParallelExecutor executor{1};
};

void Forward(benchmark::State& state, Setup& setup, int64_t rows, int64_t length,
             int64_t position) {
  StatePool pool = *StatePool::Create({setup.mixer->state_spec()}, static_cast<int32_t>(rows));
  FillState(pool.part(0).base, pool.bytes() / static_cast<int64_t>(sizeof(float)));
  std::vector<int32_t> slots(static_cast<size_t>(rows));
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<int64_t> positions(static_cast<size_t>(rows), position);
  std::vector<int64_t> offsets;
  for (int64_t r = 0; r <= rows; ++r) offsets.push_back(r * length);
  const RaggedBatch batch = {rows, slots.data(), positions.data(), offsets.data()};
  const at::Tensor random = setup.Packed(rows * length);
  // The buffers are backed by memory from the start, as the runner's activations are.
  AlignedBuffer packed = *AlignedBuffer::Create(random.numel(), "packed");
  std::copy_n(random.const_data_ptr<float>(), random.numel(), packed.data());
  AlignedBuffer y = *AlignedBuffer::Create(rows * length * kHid, "y");
  const Workspace workspace = setup.MakeWorkspace(setup.mixer->scratch_floats());
  // Prompts and full contexts are read repeatedly at one position. Otherwise decoding advances by
  // one token in each iteration.
  const int64_t step = position > 0 && !StateGrows(setup.config) ? 1 : 0;
  for (auto _ : state) {
    setup.mixer->Forward({packed.data(), random.size(1)}, batch, pool.part(0), {y.data(), kHid},
                         workspace);
    benchmark::ClobberMemory();
    for (int64_t& each : positions) each += step;
  }
}

void Decode(benchmark::State& state, const MixerConfig& config, int64_t batch) {
  Setup setup(config);
  const StateSpec spec = setup.mixer->state_spec();
  const int64_t rows = batch > 0 ? batch : kPoolBytes / StatePool::SlotBytes({spec}) + 1;
  const int64_t position = DecodedPosition(config);
  Forward(state, setup, rows, 1, position);
  // A step reads all of the state that is in use, and writes running sums back too.
  int64_t state_bytes = SlotLayout({spec}).UsedBytes(position + 1);
  for (const StateSection& section : spec.sections) {
    if (section.name == "prefix") state_bytes += 4 * section.floats;
  }
  Count(state, rows, config, state_bytes);
}

void Prefill(benchmark::State& state, const MixerConfig& config, int64_t length) {
  Setup setup(config);
  Forward(state, setup, 1, length, 0);
  Count(state, length, config, 0);
}

void EncodeBatch(benchmark::State& state, const MixerConfig& config, int64_t length,
                 bool by_pairs) {
  Setup setup(config);
  const int64_t offsets[] = {0, length};
  const std::vector<float> mask(static_cast<size_t>(by_pairs ? length * length : 0));
  const float* const pairs[] = {mask.data()};
  SequenceBatch batch = {1, offsets};
  if (by_pairs) batch.pairs = pairs;
  const at::Tensor packed = setup.Packed(length);
  at::Tensor y = at::empty({length, kHid});
  const Workspace workspace = setup.MakeWorkspace(setup.mixer->encode_scratch_floats(length));
  const PackedIn in = {packed.const_data_ptr<float>(), packed.size(1)};
  const MixerOut out = {y.data_ptr<float>(), kHid};
  for (auto _ : state) {
    if (by_pairs) {
      setup.mixer->EncodePairs(in, in, batch, out, workspace);
    } else {
      setup.mixer->Encode(in, batch, out, workspace);
    }
    benchmark::ClobberMemory();
  }
  Count(state, length, config, 0);
}

void Encode(benchmark::State& state, const MixerConfig& config, int64_t length) {
  EncodeBatch(state, config, length, /*by_pairs=*/false);
}

// Encodes with a mask of pairs that hides no pair.
void Pairs(benchmark::State& state, const MixerConfig& config, int64_t length) {
  EncodeBatch(state, config, length, /*by_pairs=*/true);
}

void Plain(benchmark::State& state, const MixerConfig& config, int64_t length) {
  Setup setup(config);
  const at::Tensor packed = setup.Packed(length).unsqueeze(0);
  for (auto _ : state) benchmark::DoNotOptimize(TrainForm(config, packed, setup.tables));
  Count(state, length, config, 0);
}

// Returns whether the plain form fits into memory. Some forms hold numbers for every pair of
// tokens.
bool PlainFits(const MixerConfig& config, int64_t length) {
  constexpr int64_t kMostFloats = int64_t{1} << 27;
  if (config.causal && config.score_width == 0) return true;
  return length * length * config.heads * std::max<int64_t>(config.score_width, 1) <= kMostFloats;
}

void Register(const std::string& name, const MixerConfig& config) {
  const auto add = [&](const char* what, const std::string& size, int64_t argument,
                       void (*run)(benchmark::State&, const MixerConfig&, int64_t)) {
    benchmark::RegisterBenchmark(
        absl::StrCat(name, "/", what, "/", size).c_str(),
        [config, run, argument](benchmark::State& state) { run(state, config, argument); });
  };
  if (config.causal) {
    for (const int64_t batch : {1, 8, 64}) add("decode", absl::StrCat("B:", batch), batch, Decode);
    add("decode", "B:256MB", 0, Decode);
  }
  for (const int64_t length : {1, 8, 32, 64, 128, 256, 512, 1024, 2048}) {
    const std::string size = absl::StrCat("T:", length);
    if (config.causal) add("prefill", size, length, Prefill);
    add("encode", size, length, Encode);
    add("pairs", size, length, Pairs);
    if (PlainFits(config, length)) add("plain", size, length, Plain);
  }
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const char* mixer : kMixers) {
    const std::string name = absl::StrReplaceAll(mixer, {{" ", "_"}});
    Register(name, MixerOf(mixer));
    if (absl::StrContains(mixer, "ring")) continue;
    MixerConfig both_ways = MixerOf(mixer);
    both_ways.causal = false;
    Register(name + "_bidirectional", both_ways);
  }
  return true;
}();

}  // namespace
}  // namespace aft

BENCHMARK_MAIN();
