#include "tests/support/mixer_reference.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"

namespace aft {
namespace {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();
constexpr double kMaskedBelow = -1e30;

size_t At(int64_t index) { return static_cast<size_t>(index); }

struct Inputs {
  const MixerConfig& config;
  int64_t hid;
  const std::vector<double>& packed;
  const ReferenceTables& tables;
  const std::vector<double>& mask;
  int64_t grid_width;
  const std::vector<double>& pairs;
  const std::vector<double>& keys;  // packed inputs from which keys and values are taken
  const int64_t width = PackedWidth(config, hid);

  int64_t tokens() const { return static_cast<int64_t>(packed.size()) / width; }
  int64_t key_tokens() const { return static_cast<int64_t>(keys.size()) / width; }
  double in(int64_t t, int64_t column) const { return packed[At(t * width + column)]; }
  double key(int64_t t, int64_t column) const { return keys[At(t * width + column)]; }
  const std::vector<double>& table(const char* name) const { return tables.at(name); }
};

// The weighted mean of the values in columns [value, value + hid), whose channels are in `groups`
// groups of the same size. `score` is S(t, t') of a group; kUnseen when t does not see t'. In
// causal mixers it is called only for t' <= t.
template <typename Score>  // double(int64_t t, int64_t key, int64_t group)
std::vector<double> Average(const Inputs& x, int64_t value, int64_t groups, const Score& score) {
  const int64_t tokens = x.tokens();
  const int64_t keys = x.key_tokens();
  const int64_t size = x.hid / groups;
  std::vector<double> y(At(tokens * x.hid), 0.0);
  std::vector<double> scores(At(keys));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t g = 0; g < groups; ++g) {
      double max = kUnseen;
      for (int64_t j = 0; j < keys; ++j) {
        const double mask = x.mask.empty() ? 0 : x.mask[At(j)];
        const double pair = x.pairs.empty() ? 0 : x.pairs[At(t * keys + j)];
        const bool hidden =
            mask <= kMaskedBelow || pair <= kMaskedBelow || (x.config.causal && j > t);
        const double s = hidden ? kUnseen : score(t, j, g) + mask + pair;
        scores[At(j)] = s;
        max = std::max(max, s);
      }
      if (max == kUnseen) continue;
      double sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        if (scores[At(j)] == kUnseen) continue;
        const double weight = std::exp(scores[At(j)] - max);
        if (weight == 0) continue;
        sum += weight;
        for (int64_t c = g * size; c < (g + 1) * size; ++c) {
          y[At(t * x.hid + c)] += weight * x.key(j, value + c);
        }
      }
      for (int64_t c = g * size; c < (g + 1) * size; ++c) y[At(t * x.hid + c)] /= sum;
    }
  }
  return y;
}

double Dot(const Inputs& x, int64_t t, int64_t q, int64_t key, int64_t k, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x.in(t, q + i) * x.key(key, k + i);
  return sum;
}

// Multiplies by sigmoid(Q), which is in the first columns.
std::vector<double> Gate(const Inputs& x, std::vector<double> y) {
  for (int64_t t = 0; t < x.tokens(); ++t) {
    for (int64_t c = 0; c < x.hid; ++c) y[At(t * x.hid + c)] /= 1 + std::exp(-x.in(t, c));
  }
  return y;
}

// w(t, key) of AFT-simple, AFT-local and AFT-full.
double PositionBias(const Inputs& x, int64_t t, int64_t key) {
  const MixerConfig& config = x.config;
  const int64_t rows = config.band_rows;
  const int64_t s = config.window;
  if (config.kind == MixerKind::kAftSimple) return 0;
  if (config.kind == MixerKind::kAftLocal && std::abs(t - key) >= s) return 0;
  if (rows > 0 && t >= rows) {
    AFT_CHECK(config.length_policy != LengthPolicy::kError);
    if (config.length_policy == LengthPolicy::kZero) return 0;
    key -= t - (rows - 1);
    t = rows - 1;
  }
  if (config.bias == BiasForm::kBand) {
    const int64_t columns = config.causal ? s : 2 * s - 1;
    const int64_t column = t - key + (config.causal ? 0 : s - 1);
    return x.table("w.band")[At((rows > 0 ? t : 0) * columns + column)];
  }
  if (key < 0 || key >= rows) return 0;
  if (config.bias == BiasForm::kFull) return x.table("w.full")[At(t * rows + key)];
  double w = 0;
  for (int64_t i = 0; i < config.bias_rank; ++i) {
    w += x.table("w.u")[At(t * config.bias_rank + i)] *
         x.table("w.v")[At(key * config.bias_rank + i)];
  }
  return w;
}

std::vector<double> Aft(const Inputs& x) {
  const int64_t block = x.config.prefix_block;
  const int64_t keys = x.key_tokens();
  std::vector<double> bias(At(x.tokens() * keys), kUnseen);
  for (int64_t t = 0; t < x.tokens(); ++t) {
    const int64_t first = block > 0 ? std::max<int64_t>(0, (t / block - 1) * block) : 0;
    const int64_t end = x.config.causal ? std::min(keys, t + 1) : keys;
    for (int64_t key = first; key < end; ++key) bias[At(t * keys + key)] = PositionBias(x, t, key);
  }
  return Gate(x, Average(x, 2 * x.hid, x.hid, [&](int64_t t, int64_t key, int64_t c) {
                return x.key(key, x.hid + c) + bias[At(t * keys + key)];
              }));
}

std::vector<double> AftConv(const Inputs& x) {
  const int64_t s = x.config.window;
  const int64_t half = (s - 1) / 2;
  const int64_t heads = x.config.heads;
  const std::vector<double> filter = ReferenceConvFilter(x.config, x.tables);
  const auto bias = [&](int64_t t, int64_t key, int64_t head) {
    if (x.config.grid) {
      const int64_t row = key / x.grid_width - t / x.grid_width + half;
      const int64_t column = key % x.grid_width - t % x.grid_width + half;
      const bool inside = row >= 0 && row < s && column >= 0 && column < s;
      return inside ? filter[At((head * s + row) * s + column)] : 0.0;
    }
    const int64_t tap = x.config.causal ? t - key : key - t + half;
    return tap >= 0 && tap < s ? filter[At(head * s + tap)] : 0.0;
  };
  return Gate(x, Average(x, x.hid + heads, heads, [&](int64_t t, int64_t key, int64_t head) {
                return x.key(key, x.hid + head) + bias(t, key, head);
              }));
}

// The scaled dot product per head, also for block-local attention, which sees fewer keys.
std::vector<double> DotProduct(const Inputs& x) {
  const MixerConfig& config = x.config;
  const int64_t n = x.hid / config.heads;
  const auto sees = [&config](int64_t t, int64_t key) {
    if (config.kind != MixerKind::kBlockLocal) return true;
    if (config.global_token && (key == 0 || (t == 0 && !config.causal))) return true;
    return std::abs(t / config.block_size - key / config.block_size) <= 1;
  };
  return Average(x, 2 * x.hid, config.heads, [&](int64_t t, int64_t key, int64_t head) {
    if (!sees(t, key)) return kUnseen;
    return Dot(x, t, head * n, key, x.hid + head * n, n) / std::sqrt(static_cast<double>(n));
  });
}

std::vector<double> Cosine(const Inputs& x) {
  const int64_t n = x.hid / x.config.heads;
  return Average(x, 2 * x.hid, x.config.heads, [&](int64_t t, int64_t key, int64_t head) {
    const int64_t q = head * n;
    const int64_t k = x.hid + head * n;
    const double b = x.in(t, 3 * x.hid + head);
    const double strength = std::max(b, 0.0) + std::log1p(std::exp(-std::abs(b)));  // softplus
    double of_query = 0;
    double of_key = 0;
    for (int64_t i = 0; i < n; ++i) {
      of_query += x.in(t, q + i) * x.in(t, q + i);
      of_key += x.key(key, k + i) * x.key(key, k + i);
    }
    return strength * Dot(x, t, q, key, k, n) /
           (std::max(std::sqrt(of_query), kCosineEps) * std::max(std::sqrt(of_key), kCosineEps));
  });
}

std::vector<double> Additive(const Inputs& x) {
  const int64_t a = x.config.score_width;
  const int64_t keys = x.config.heads * a;
  const std::vector<double>& v = x.table("score.v");
  return Average(x, 2 * keys, x.config.heads, [&](int64_t t, int64_t key, int64_t head) {
    double sum = 0;
    for (int64_t i = head * a; i < (head + 1) * a; ++i) {
      sum += v[At(i)] * std::tanh(x.in(t, i) + x.key(key, keys + i));
    }
    return sum;
  });
}

std::vector<double> Location(const Inputs& x) {
  AFT_CHECK(x.tokens() <= x.config.band_rows);
  const std::vector<double>& weight = x.table("location.weight");
  return Average(x, x.hid, 1, [&](int64_t t, int64_t key, int64_t) {
    double sum = 0;
    for (int64_t i = 0; i < x.hid; ++i) sum += weight[At(key * x.hid + i)] * x.in(t, i);
    return sum;
  });
}

std::vector<double> Wkv4(const Inputs& x) {
  return Gate(x, Average(x, 2 * x.hid, x.hid, [&](int64_t t, int64_t key, int64_t c) {
                const double k = x.key(key, x.hid + c);
                if (key == t) return k + x.table("bonus")[At(c)];
                return k - static_cast<double>(t - key - 1) * std::exp(x.table("decay")[At(c)]);
              }));
}

// One token of one head of wkv7; S [n, n] by key channel and value channel.
void Wkv7Token(const Inputs& x, int64_t t, int64_t head, std::vector<double>& s, double* y) {
  const int64_t n = x.hid / x.config.heads;
  const auto part = [&](int64_t index, int64_t i) {  // of r, w, k, v, a, g
    return x.in(t, index * x.hid + head * n + i);
  };
  const auto table = [&](const char* name, int64_t i) { return x.table(name)[At(head * n + i)]; };
  const auto sigmoid = [](double value) { return 1 / (1 + std::exp(-value)); };
  double length = 0;
  for (int64_t i = 0; i < n; ++i) length += std::pow(part(2, i) * table("key_scale", i), 2);
  length = std::max(std::sqrt(length), 1e-12);
  const auto unit = [&](int64_t j) { return part(2, j) * table("key_scale", j) / length; };
  const auto key = [&](int64_t j) {
    return part(2, j) * (1 + (sigmoid(part(4, j)) - 1) * table("key_rate", j));
  };
  std::vector<double> removed(At(n), 0.0);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) removed[At(i)] += unit(j) * s[At(j * n + i)];
  }
  double bonus = 0;
  for (int64_t j = 0; j < n; ++j) {
    const double decay = std::exp(-std::exp(-0.5) * sigmoid(part(1, j)));
    for (int64_t i = 0; i < n; ++i) {
      double& state = s[At(j * n + i)];
      state = state * decay - removed[At(i)] * unit(j) * sigmoid(part(4, j)) + key(j) * part(3, i);
      y[i] += state * part(0, j);
    }
    bonus += part(0, j) * key(j) * table("bonus", j);
  }
  const auto count = static_cast<double>(n);
  double mean = 0;
  double variance = 0;
  for (int64_t i = 0; i < n; ++i) mean += y[i] / count;
  for (int64_t i = 0; i < n; ++i) variance += (y[i] - mean) * (y[i] - mean) / count;
  for (int64_t i = 0; i < n; ++i) {
    y[i] = (y[i] - mean) / std::sqrt(variance + 1e-5 * count) * table("group_norm.weight", i) +
           table("group_norm.bias", i);
    y[i] = (y[i] + bonus * part(3, i)) * part(5, i);
  }
}

std::vector<double> Wkv7(const Inputs& x) {
  const int64_t n = x.hid / x.config.heads;
  std::vector<double> y(At(x.tokens() * x.hid), 0.0);
  for (int64_t head = 0; head < x.config.heads; ++head) {
    std::vector<double> s(At(n * n), 0.0);
    if (x.config.initial_state) {
      std::copy_n(x.table("initial_state").begin() + head * n * n, n * n, s.begin());
    }
    for (int64_t t = 0; t < x.tokens(); ++t) {
      Wkv7Token(x, t, head, s, y.data() + t * x.hid + head * n);
    }
  }
  return y;
}

// What the tests know about a kind: its formula and an example. If the example has band_rows,
// ExampleMixer sets them to the length of the text.
struct ReferenceKind {
  std::vector<double> (*formula)(const Inputs& x);
  MixerConfig example;
};

constexpr int64_t kRows = 1;
constexpr ReferenceKind kKinds[] = {
    {Aft, {.kind = MixerKind::kAftSimple}},
    {Aft, {.kind = MixerKind::kAftLocal, .window = 5}},
    {Aft, {.kind = MixerKind::kAftFull, .band_rows = kRows, .bias = BiasForm::kFull}},
    {AftConv, {.kind = MixerKind::kAftConv, .window = 7, .heads = 2}},
    {DotProduct, {.kind = MixerKind::kBlockLocal, .heads = 2, .block_size = 8}},
    {DotProduct, {.kind = MixerKind::kDotProduct, .heads = 2}},
    {Cosine, {.kind = MixerKind::kCosine, .heads = 2}},
    {Additive, {.kind = MixerKind::kAdditive, .heads = 2, .score_width = 6}},
    {Location, {.kind = MixerKind::kLocation, .band_rows = kRows}},
    {Wkv4, {.kind = MixerKind::kWkv4}},
    {Wkv7,
     {.kind = MixerKind::kWkv7,
      .heads = 2,
      .decay_rank = 4,
      .rate_rank = 3,
      .value_rank = 5,
      .gate_rank = 6}},
};

const ReferenceKind& Reference(MixerKind kind) {
  const auto* const found =
      std::find_if(std::begin(kKinds), std::end(kKinds),
                   [kind](const ReferenceKind& known) { return known.example.kind == kind; });
  AFT_CHECK(found != std::end(kKinds));
  return *found;
}

}  // namespace

MixerConfig ExampleMixer(MixerKind kind, int64_t tokens, bool causal) {
  MixerConfig config = Reference(kind).example;
  config.causal = causal;
  if (config.band_rows > 0) config.band_rows = tokens;
  return config;
}

void UseMixer(const MixerConfig& mixer, NetworkConfig* config) {
  config->mixer = mixer;
  if (!SpecOf(mixer.kind).token_shift) return;
  const bool gated = mixer.kind == MixerKind::kWkv4;
  config->feed_forward = gated ? FeedForwardKind::kGatedChannelMix : FeedForwardKind::kChannelMix;
  config->activation = Activation::kSquaredRelu;
  config->embedding_norm = true;
  config->qkv_bias = config->head_bias = false;
}

std::vector<double> ReferenceConvFilter(const MixerConfig& config, const ReferenceTables& tables) {
  std::vector<double> filter = tables.at("conv.w");
  if (!config.reparameterized) return filter;
  const int64_t taps = static_cast<int64_t>(filter.size()) / config.heads;
  const auto count = static_cast<double>(taps);
  for (int64_t head = 0; head < config.heads; ++head) {
    double* w = filter.data() + head * taps;
    double mean = 0;
    double square = 0;
    for (int64_t j = 0; j < taps; ++j) mean += w[j] / count;
    for (int64_t j = 0; j < taps; ++j) square += (w[j] - mean) * (w[j] - mean);
    const double std = std::sqrt(square / (config.unbiased_std ? count - 1 : count));
    for (int64_t j = 0; j < taps; ++j) {
      w[j] = tables.at("conv.gamma")[At(head)] * (w[j] - mean) /
                 (std + static_cast<double>(config.std_eps)) +
             tables.at("conv.beta")[At(head)];
    }
  }
  return filter;
}

std::vector<double> ReferenceMixer(const MixerConfig& config, int64_t hid,
                                   const std::vector<double>& packed, const ReferenceTables& tables,
                                   const std::vector<double>& mask, int64_t grid_width,
                                   const std::vector<double>& pairs,
                                   const std::vector<double>& keys) {
  const Inputs x = {config, hid,        packed, tables,
                    mask,   grid_width, pairs,  keys.empty() ? packed : keys};
  AFT_CHECK(static_cast<int64_t>(packed.size()) == x.tokens() * x.width);
  AFT_CHECK(mask.empty() || static_cast<int64_t>(mask.size()) == x.key_tokens());
  AFT_CHECK(pairs.empty() || static_cast<int64_t>(pairs.size()) == x.tokens() * x.key_tokens());
  return Reference(config.kind).formula(x);
}

}  // namespace aft
