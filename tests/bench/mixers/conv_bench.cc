// AFT-conv: heads of 1, 8, 16, 64 and 512 channels.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

// The step of kernels/conv.cc in LibTorch operators; a head's ring is a matrix of its own, so that
// its sum over the tokens is a matrix product.
PlainStep PlainConv(const MixerBench& bench, const MixerTables& tables, int64_t batch) {
  struct State {
    at::Tensor n;     // [B, h, 1, hid / h]
    at::Tensor d, m;  // [B, h]
    at::Tensor k;     // [B, h, s - 1]
    at::Tensor v;     // [B, h, s - 1, hid / h]
    at::Tensor w;     // [h, s - 1], in the order of the ring
    at::Tensor w0;    // [h]
  };
  const int64_t hid = bench.hid;
  const int64_t heads = bench.config.heads;
  const int64_t width = hid / heads;
  const int64_t rows = bench.config.window - 1;
  auto state = std::make_shared<State>();
  state->n = at::zeros({batch, heads, 1, width});
  state->d = at::zeros({batch, heads});
  state->m = at::zeros({batch, heads});
  state->k = at::randn({batch, heads, rows});
  state->v = at::randn({batch, heads, rows, width});
  const at::Tensor filter = tables.at("conv.w");
  state->w0 = filter.select(1, 0);
  // Token j sits in row j mod (s - 1).
  state->w = at::zeros({heads, rows});
  for (int64_t age = 1; age <= rows; ++age) {
    state->w.select(1, (bench.position - age) % rows).copy_(filter.select(1, age));
  }
  const int64_t oldest = bench.position % rows;
  return [state, hid, heads, width, batch, oldest](const at::Tensor& packed) {
    State& x = *state;
    const at::Tensor q = packed.slice(1, 0, hid);
    const at::Tensor k = packed.slice(1, hid, hid + heads);
    const at::Tensor v = packed.slice(1, hid + heads).view({batch, heads, 1, width});
    const auto spread = [](const at::Tensor& y) { return y.unsqueeze(2).unsqueeze(3); };
    const at::Tensor max = at::maximum(at::maximum(x.m, k), x.k.amax(2));
    const at::Tensor e = at::exp((x.k - max.unsqueeze(2)) + x.w);
    const at::Tensor past = at::exp(x.m - max);
    const at::Tensor own = at::exp((k - max) + x.w0);
    const at::Tensor in_ring =
        width == 1 ? (e.unsqueeze(3) * x.v).sum(2, /*keepdim=*/true) : e.unsqueeze(2).matmul(x.v);
    const at::Tensor num = in_ring + spread(past) * x.n + spread(own) * v;
    const at::Tensor den = e.sum(2) + past * x.d + own;
    const at::Tensor old_k = x.k.select(2, oldest);
    const at::Tensor old_v = x.v.select(2, oldest).unsqueeze(2);
    const at::Tensor m = at::maximum(x.m, old_k);
    const at::Tensor keep = at::exp(x.m - m);
    const at::Tensor add = at::exp(old_k - m);
    x.n = x.n * spread(keep) + spread(add) * old_v;
    x.d = x.d * keep + add;
    x.m = m;
    x.k.select(2, oldest).copy_(k);
    x.v.select(2, oldest).copy_(v.squeeze(2));
    return at::sigmoid(q) * (num / spread(den)).view({batch, hid});
  };
}

std::vector<MixerBench> ConvBenches() {
  constexpr int64_t kHid = 512;
  constexpr int64_t kTaps = 31;
  const std::vector<int64_t> lengths = {1, 8, 32, 64, 128, 256, 512, 1024, 2048};
  std::vector<MixerBench> benches;
  for (const int64_t heads : {512, 64, 32, 8, 1}) {
    for (const bool bf16 : {false, true}) {
      MixerBench bench;
      bench.name = absl::StrCat("aft_conv_h", heads, bf16 ? "_bf16" : "");
      bench.config.kind = MixerKind::kAftConv;
      bench.config.heads = heads;
      bench.config.window = kTaps;
      bench.config.ring = bf16 ? Number::kBf16 : Number::kFp32;
      bench.hid = kHid;
      bench.lengths = bf16 ? std::vector<int64_t>{1024} : lengths;
      // Prefix sums and a ring row are read and written, the other rows read.
      bench.state_bytes = 2 * 4.0 * static_cast<double>(kHid + 2 * heads) +
                          (bf16 ? 2.0 : 4.0) * static_cast<double>(kTaps * (kHid + heads));
      bench.plain = PlainConv;
      benches.push_back(bench);
      if (bf16) continue;
      bench.name += "_bidirectional";
      bench.config.causal = false;
      bench.lengths = {1, 32, 128, 256};  // the plain form is T * T * h
      benches.push_back(bench);
    }
  }
  return benches;
}

[[maybe_unused]] const bool kRegistered = RegisterMixerBenches(ConvBenches());

}  // namespace
}  // namespace aft
