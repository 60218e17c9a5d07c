// AFT-simple, AFT-local and AFT-full.

#include <algorithm>
#include <memory>
#include <string>

#include "ATen/TensorIndexing.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/exp.h"
#include "ATen/ops/maximum.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "tests/bench/mixers/harness.h"

namespace aft {
namespace {

// The step of kernels/aft.cc in LibTorch operators: sums of what left the window, and the last
// s - 1 tokens in a ring.
PlainStep PlainAft(const MixerBench& bench, const MixerTables& tables, int64_t batch) {
  struct State {
    at::Tensor n, d, m;  // [B, hid]
    at::Tensor k, v;     // [B, s - 1, hid]
    at::Tensor w;        // [1, s - 1, 1], in the order of the ring
    at::Tensor w0;
  };
  const int64_t hid = bench.hid;
  const int64_t s = bench.config.window;
  auto state = std::make_shared<State>();
  state->n = at::zeros({batch, hid});
  state->d = at::zeros({batch, hid});
  state->m = at::zeros({batch, hid});
  if (s > 1) {
    state->k = at::randn({batch, s - 1, hid});
    state->v = at::randn({batch, s - 1, hid});
    const at::Tensor band = tables.at("w.band")[0];
    state->w0 = band[0];
    // Token j sits in row j mod (s - 1).
    state->w = at::zeros({1, s - 1, 1});
    for (int64_t age = 1; age < s; ++age) {
      state->w[0][(bench.position - age) % (s - 1)][0] = band[age];
    }
  }
  const int64_t oldest = s > 1 ? bench.position % (s - 1) : 0;
  return [state, hid, s, oldest](const at::Tensor& packed) {
    State& x = *state;
    const at::Tensor q = packed.slice(1, 0, hid);
    const at::Tensor k = packed.slice(1, hid, 2 * hid);
    const at::Tensor v = packed.slice(1, 2 * hid, 3 * hid);
    const auto insert = [&x](const at::Tensor& key, const at::Tensor& value) {
      const at::Tensor max = at::maximum(x.m, key);
      const at::Tensor keep = at::exp(x.m - max);
      const at::Tensor add = at::exp(key - max);
      x.n = x.n * keep + add * value;
      x.d = x.d * keep + add;
      x.m = max;
    };
    if (s <= 1) {
      insert(k, v);
      return at::sigmoid(q) * x.n / x.d;
    }
    const at::Tensor max = at::maximum(at::maximum(x.m, k), x.k.amax(1));
    const at::Tensor e = at::exp((x.k - max.unsqueeze(1)) + x.w);
    const at::Tensor past = at::exp(x.m - max);
    const at::Tensor own = at::exp((k - max) + x.w0);
    const at::Tensor num = (e * x.v).sum(1) + past * x.n + own * v;
    const at::Tensor den = e.sum(1) + past * x.d + own;
    insert(x.k.select(1, oldest), x.v.select(1, oldest));
    x.k.select(1, oldest).copy_(k);
    x.v.select(1, oldest).copy_(v);
    return at::sigmoid(q) * num / den;
  };
}

std::vector<MixerBench> AftBenches() {
  constexpr int64_t kHid = 512;
  const std::vector<int64_t> lengths = {1, 8, 32, 64, 128, 256, 512, 1024, 2048};
  std::vector<MixerBench> benches;
  for (const int64_t window : {0, 1, 32, 128, 256, 1024}) {
    for (const Number ring : {Number::kFp32, Number::kBf16}) {
      if (ring == Number::kBf16 && window <= 1) continue;
      const bool bf16 = ring == Number::kBf16;
      MixerBench bench;
      bench.name = window == 0 ? "aft_simple" : absl::StrCat("aft_local_", window);
      if (bf16) bench.name += "_bf16";
      bench.config.kind = window == 0 ? MixerKind::kAftSimple : MixerKind::kAftLocal;
      bench.config.window = window;
      bench.config.ring = ring;
      bench.hid = kHid;
      bench.lengths = bf16 ? std::vector<int64_t>{1024} : lengths;
      // Prefix sums and a ring row are read and written, the other rows read.
      const int64_t ring_rows = std::max<int64_t>(window - 1, 0);
      const double ring_row = (bf16 ? 4.0 : 8.0) * kHid;
      bench.state_bytes =
          2 * 12.0 * kHid +
          ring_row * static_cast<double>(ring_rows + std::min<int64_t>(ring_rows, 1));
      if (window <= 32) bench.plain = PlainAft;
      benches.push_back(bench);
    }
  }
  MixerBench full;
  full.name = "aft_full";
  full.config.kind = MixerKind::kAftFull;
  full.config.bias = BiasForm::kFull;
  full.hid = kHid;
  full.batches = {};
  for (const int64_t length : lengths) {
    full.config.band_rows = length;
    full.lengths = {length};
    benches.push_back(full);
  }
  std::vector<MixerBench> bidirectional;
  for (MixerBench bench : benches) {
    if (bench.config.ring == Number::kBf16) continue;
    bench.name += "_bidirectional";
    bench.config.causal = false;
    bidirectional.push_back(bench);
  }
  benches.insert(benches.end(), bidirectional.begin(), bidirectional.end());
  return benches;
}

[[maybe_unused]] const bool kRegistered = RegisterMixerBenches(AftBenches());

}  // namespace
}  // namespace aft
