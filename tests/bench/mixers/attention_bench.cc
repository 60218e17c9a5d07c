// Dot-product, cosine, additive, location-based and block-local attention. The plain decode steps
// keep their keys and values in tensors that are there from the start, so that a step appends by a
// copy and reads by a view: the best that LibTorch's operators allow.

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/linalg_vector_norm.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/softplus.h"
#include "ATen/ops/tanh.h"
#include "tests/bench/mixers/harness.h"

namespace aft {
namespace {

constexpr int64_t kHid = 512;
constexpr int64_t kHeads = 8;
constexpr int64_t kContext = 4000;  // of the decoded token
constexpr int64_t kMaxLength = 4096;

// Columns [begin, end) of packed [B, w] as [B, heads, 1, (end - begin) / heads].
at::Tensor Heads(const at::Tensor& packed, int64_t begin, int64_t end, int64_t heads) {
  return packed.slice(1, begin, end).unflatten(1, {heads, (end - begin) / heads}).unsqueeze(2);
}

// A cache [B, heads, tokens, width]; Append writes row `at` and returns the rows up to it.
class Cache {
 public:
  Cache(int64_t batch, int64_t heads, int64_t tokens, int64_t width)
      : rows_(at::randn({batch, heads, tokens, width})) {}

  at::Tensor Append(int64_t at, const at::Tensor& row) {
    rows_.slice(2, at, at + 1).copy_(row);
    return rows_.slice(2, 0, at + 1);
  }

 private:
  at::Tensor rows_;
};

// One step of a kind of attention: from packed, and where the new key and value go.
using Step = std::function<at::Tensor(const at::Tensor& packed, Cache& keys, Cache& values)>;

PlainStep WithCaches(int64_t batch, int64_t heads, int64_t tokens, int64_t score_width,
                     const Step& step) {
  auto keys = std::make_shared<Cache>(batch, heads, tokens, score_width);
  auto values = std::make_shared<Cache>(batch, heads, tokens, kHid / heads);
  return [keys, values, step](const at::Tensor& packed) {
    return step(packed, *keys, *values).flatten(1);
  };
}

// k, v [B, heads, keys, width].
at::Tensor Dot(const at::Tensor& packed, const at::Tensor& k, const at::Tensor& v) {
  const at::Tensor q = Heads(packed, 0, kHid, kHeads);
  const at::Tensor scores = q.matmul(k.transpose(2, 3)) / std::sqrt(double{kHid} / kHeads);
  return at::softmax(scores, -1).matmul(v);
}

at::Tensor DotStep(const at::Tensor& packed, Cache& keys, Cache& values, int64_t at) {
  return Dot(packed, keys.Append(at, Heads(packed, kHid, 2 * kHid, kHeads)),
             values.Append(at, Heads(packed, 2 * kHid, 3 * kHid, kHeads)));
}

PlainStep PlainDot(const MixerBench& bench, const MixerTables& /*tables*/, int64_t batch) {
  return WithCaches(batch, kHeads, kMaxLength, kHid / kHeads,
                    [at = bench.position](const at::Tensor& packed, Cache& keys, Cache& values) {
                      return DotStep(packed, keys, values, at);
                    });
}

PlainStep FusedDot(const MixerBench& bench, const MixerTables& /*tables*/, int64_t batch) {
  return WithCaches(batch, kHeads, kMaxLength, kHid / kHeads,
                    [at = bench.position](const at::Tensor& packed, Cache& keys, Cache& values) {
                      return at::scaled_dot_product_attention(
                          Heads(packed, 0, kHid, kHeads),
                          keys.Append(at, Heads(packed, kHid, 2 * kHid, kHeads)),
                          values.Append(at, Heads(packed, 2 * kHid, 3 * kHid, kHeads)));
                    });
}

// The first token, then a ring of two blocks, whose last row in use is that of the new token: one
// view holds all that it sees.
PlainStep PlainBlockLocal(const MixerBench& bench, const MixerTables& /*tables*/, int64_t batch) {
  const int64_t ring = 2 * bench.config.block_size;
  const int64_t at = 1 + bench.position % ring;
  return WithCaches(batch, kHeads, 1 + ring, kHid / kHeads,
                    [at](const at::Tensor& packed, Cache& keys, Cache& values) {
                      return DotStep(packed, keys, values, at);
                    });
}

// As LSG's own code does it: all keys and values are kept, and the visible ones gathered.
PlainStep GatheredBlockLocal(const MixerBench& bench, const MixerTables& /*tables*/,
                             int64_t batch) {
  const int64_t at = bench.position;
  const int64_t first = (at / bench.config.block_size - 1) * bench.config.block_size;
  return WithCaches(batch, kHeads, at + 1, kHid / kHeads,
                    [at, first](const at::Tensor& packed, Cache& keys, Cache& values) {
                      const auto visible = [at, first](const at::Tensor& x) {
                        return at::cat({x.slice(2, 0, 1), x.slice(2, first, at + 1)}, 2);
                      };
                      return Dot(
                          packed, visible(keys.Append(at, Heads(packed, kHid, 2 * kHid, kHeads))),
                          visible(values.Append(at, Heads(packed, 2 * kHid, 3 * kHid, kHeads))));
                    });
}

PlainStep PlainCosine(const MixerBench& bench, const MixerTables& /*tables*/, int64_t batch) {
  return WithCaches(
      batch, kHeads, kMaxLength, kHid / kHeads,
      [at = bench.position](const at::Tensor& packed, Cache& keys, Cache& values) {
        const auto direction = [](const at::Tensor& x) {
          return x / at::linalg_vector_norm(x, 2, {3}, /*keepdim=*/true).clamp_min(1e-6);
        };
        const at::Tensor k = keys.Append(at, direction(Heads(packed, kHid, 2 * kHid, kHeads)));
        const at::Tensor v = values.Append(at, Heads(packed, 2 * kHid, 3 * kHid, kHeads));
        const at::Tensor strength =
            at::softplus(Heads(packed, 3 * kHid, 3 * kHid + kHeads, kHeads));
        const at::Tensor q = direction(Heads(packed, 0, kHid, kHeads)) * strength;
        return at::softmax(q.matmul(k.transpose(2, 3)), -1).matmul(v);
      });
}

PlainStep PlainAdditive(const MixerBench& bench, const MixerTables& tables, int64_t batch) {
  const int64_t width = bench.config.score_width;
  const at::Tensor weight = tables.at("score.v").unsqueeze(2);  // [h, a, 1]
  return WithCaches(
      batch, kHeads, kMaxLength, width,
      [at = bench.position, width, weight](const at::Tensor& packed, Cache& keys, Cache& values) {
        const int64_t all = kHeads * width;
        const at::Tensor k = keys.Append(at, Heads(packed, all, 2 * all, kHeads));
        const at::Tensor v = values.Append(at, Heads(packed, 2 * all, 2 * all + kHid, kHeads));
        const at::Tensor q = Heads(packed, 0, all, kHeads);
        const at::Tensor scores = at::tanh(q + k).matmul(weight);  // [B, h, T, 1]
        return at::softmax(scores.transpose(2, 3), -1).matmul(v);
      });
}

PlainStep PlainLocation(const MixerBench& bench, const MixerTables& tables, int64_t batch) {
  const at::Tensor weight = tables.at("location.weight").slice(0, 0, bench.position + 1);
  return WithCaches(
      batch, 1, kMaxLength, 1,
      [at = bench.position, weight](const at::Tensor& packed, Cache& /*keys*/, Cache& values) {
        const at::Tensor v = values.Append(at, Heads(packed, kHid, 2 * kHid, 1));
        const at::Tensor scores = packed.slice(1, 0, kHid).matmul(weight.t());  // [B, T]
        return at::softmax(scores, -1).unsqueeze(1).unsqueeze(2).matmul(v);
      });
}

MixerBench Growing(const char* name, MixerKind kind, double bytes_per_token) {
  MixerBench bench;
  bench.name = name;
  bench.config.kind = kind;
  bench.config.heads = kHeads;
  bench.hid = kHid;
  bench.max_seq_len = kMaxLength;
  bench.position = kContext;
  bench.batches = {1, 0};
  bench.lengths = {1, 32, 128, 512, 2048};
  bench.state_bytes = bytes_per_token * (kContext + 1);
  return bench;
}

std::vector<MixerBench> AttentionBenches() {
  std::vector<MixerBench> benches;
  MixerBench dot = Growing("dot_product", MixerKind::kDotProduct, 8.0 * kHid);
  dot.plain = PlainDot;
  benches.push_back(dot);
  dot.name = "dot_product_fused";  // decode_plain: LibTorch's fused attention
  dot.plain = FusedDot;
  dot.lengths = {};
  benches.push_back(dot);

  MixerBench cosine = Growing("cosine", MixerKind::kCosine, 8.0 * kHid);
  cosine.plain = PlainCosine;
  benches.push_back(cosine);

  for (const int64_t width : {32, 64}) {
    MixerBench additive = Growing(width == 32 ? "additive_32" : "additive_64", MixerKind::kAdditive,
                                  4.0 * static_cast<double>(kHeads * width + kHid));
    additive.config.score_width = width;
    additive.plain = PlainAdditive;
    additive.lengths = {1, 32, 128, 512};  // the plain form needs heads * T * T * width floats
    benches.push_back(additive);
  }

  MixerBench location = Growing("location", MixerKind::kLocation, 4.0 * kHid);
  location.config.heads = 1;
  location.config.band_rows = kMaxLength;
  location.plain = PlainLocation;
  benches.push_back(location);

  MixerBench block;
  block.name = "block_local_128";
  block.config.kind = MixerKind::kBlockLocal;
  block.config.heads = kHeads;
  block.config.block_size = 128;
  block.hid = kHid;
  block.position = 1000;
  block.batches = {1, 8, 64, 0};
  block.lengths = {1, 32, 128, 512, 2048};
  // The first token, the block before and what there is of the own one.
  block.state_bytes = 8.0 * kHid * (1 + 128 + 1000 % 128 + 1);
  block.plain = PlainBlockLocal;
  benches.push_back(block);
  block.name = "block_local_128_gathered";
  block.plain = GatheredBlockLocal;
  block.batches = {1, 8, 64};
  block.lengths = {};
  benches.push_back(block);

  std::vector<MixerBench> bidirectional;
  for (MixerBench bench : benches) {
    if (bench.lengths.empty()) continue;
    bench.name += "_bidirectional";
    bench.config.causal = false;
    bidirectional.push_back(bench);
  }
  benches.insert(benches.end(), bidirectional.begin(), bidirectional.end());
  return benches;
}

[[maybe_unused]] const bool kRegistered = RegisterMixerBenches(AttentionBenches());

}  // namespace
}  // namespace aft
