#include "tests/property/attention_harness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "base/check.h"
#include "gtest/gtest.h"

namespace aft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kAdditiveWidth = 5;

const float* At(const std::vector<float>& matrix, int64_t i) {
  return matrix.data() + static_cast<size_t>(i);
}

double Length(const float* x, int64_t width) {
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return std::max(std::sqrt(sum), 1e-6);
}

// Adds |terms| of the score's sum to *size.
double ScoreOf(const AttentionLayer& layer, const float* q, const float* k, int64_t head,
               double strength, double* size) {
  const int64_t width = layer.params.score_width;
  double factor = layer.params.scale;
  if (layer.kind == AttentionKind::kCosine) {
    factor = std::log1p(std::exp(strength)) / (Length(q, width) * Length(k, width));
  }
  double score = 0;
  *size = 0;
  for (int64_t i = 0; i < width; ++i) {
    const double a = q[i];
    const double b = k[i];
    const double term =
        layer.kind == AttentionKind::kAdditive
            ? layer.score_weight[static_cast<size_t>(head * width + i)] * std::tanh(a + b)
            : factor * a * b;
    score += term;
    *size += std::abs(term);
  }
  return score;
}

}  // namespace

const std::vector<AttentionKind> kAttentionKinds = {
    AttentionKind::kDot, AttentionKind::kCosine, AttentionKind::kAdditive, AttentionKind::kLocation,
    AttentionKind::kBlockLocal};

AttentionLayer::AttentionLayer(AttentionKind layer_kind, int64_t heads, int64_t width,
                               int64_t capacity, TestRandom& random)
    : kind(layer_kind) {
  params.heads = kind == AttentionKind::kLocation ? 1 : heads;
  params.score_width = kind == AttentionKind::kAdditive ? kAdditiveWidth : width;
  params.value_width = width;
  params.capacity = capacity;
  switch (kind) {
    case AttentionKind::kBlockLocal:
      params.block_size = 16;
      params.global_token = true;
      [[fallthrough]];
    case AttentionKind::kDot:
      params.scale = 1.0F / std::sqrt(static_cast<float>(width));
      break;
    case AttentionKind::kCosine:
      params.score = kernels::Score::kCosine;
      break;
    case AttentionKind::kAdditive:
      params.score = kernels::Score::kAdditive;
      score_weight = random.Normals(heads * kAdditiveWidth);
      params.score_weight = score_weight.data();
      break;
    case AttentionKind::kLocation:
      position_weight = random.Normals(capacity * width);
      packed_keys_.resize(static_cast<size_t>(kernels::RoundUpToKeyBlock(capacity) * width));
      kernels::PackKeys(position_weight.data(), capacity, width, packed_keys_.data());
      params.position_keys = packed_keys_.data();
      params.position_rows = capacity;
      break;
  }
}

std::string AttentionLayer::Name() const {
  return testing::PrintToString(std::tuple(static_cast<int>(kind), params.heads, params.value_width,
                                           params.block_size, params.global_token, params.causal));
}

bool Sees(const kernels::AttentionParams& params, int64_t tokens, int64_t generated, int64_t t,
          int64_t t2) {
  if (t2 >= tokens || (params.causal && t2 > t)) return false;
  if (params.block_size == 0 || (params.full_decode && t >= generated)) return true;
  if (params.global_token && (t2 == 0 || (t == 0 && !params.causal))) return true;
  return std::abs(t / params.block_size - t2 / params.block_size) <= 1;
}

std::vector<double> AttentionReference(const AttentionLayer& layer,
                                       const std::vector<float>& packed,
                                       const std::vector<float>& mask, int64_t generated,
                                       double* largest) {
  const kernels::AttentionParams& p = layer.params;
  const int64_t tokens = static_cast<int64_t>(packed.size()) / layer.packed_width();
  std::vector<double> y(static_cast<size_t>(tokens * p.hid()), 0.0);
  std::vector<double> scores(static_cast<size_t>(tokens));
  *largest = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const float* row = At(packed, t * layer.packed_width());
    for (int64_t h = 0; h < p.heads; ++h) {
      const double strength =
          layer.kind == AttentionKind::kCosine ? row[p.StrengthColumn() + h] : 0.0;
      double max = -std::numeric_limits<double>::infinity();
      for (int64_t j = 0; j < tokens; ++j) {
        double& score = scores[static_cast<size_t>(j)];
        score = -std::numeric_limits<double>::infinity();
        const float bias = mask.empty() ? 0.0F : mask[static_cast<size_t>(j)];
        if (!Sees(p, tokens, generated, t, j) || bias <= kMaskedBelow) continue;
        const float* k =
            layer.kind == AttentionKind::kLocation
                ? At(layer.position_weight, j * p.score_width)
                : At(packed, j * layer.packed_width()) + p.KeyColumn() + h * p.score_width;
        double size = 0;
        score = bias + ScoreOf(layer, row + h * p.score_width, k, h, strength, &size);
        *largest = std::max(*largest, size + std::abs(bias));
        max = std::max(max, score);
      }
      double den = 0;
      double* out = y.data() + t * p.hid() + h * p.value_width;
      for (int64_t j = 0; j < tokens; ++j) {
        const double e = std::exp(scores[static_cast<size_t>(j)] - max);
        if (!(e > 0)) continue;
        den += e;
        const float* v = At(packed, j * layer.packed_width()) + p.ValueColumn() + h * p.value_width;
        for (int64_t c = 0; c < p.value_width; ++c) out[c] += e * v[c];
      }
      for (int64_t c = 0; c < p.value_width && den > 0; ++c) out[c] /= den;
    }
  }
  return y;
}

AttentionRunner::AttentionRunner(const AttentionLayer& layer, int64_t slots)
    : layer_(layer), states_(static_cast<size_t>(slots * layer.slot_floats()), kNan) {}

std::vector<std::vector<float>> AttentionRunner::Run(const std::vector<AttentionChunk>& chunks) {
  const int64_t width = layer_.packed_width();
  const int64_t hid = layer_.params.hid();
  std::vector<int32_t> slots;
  std::vector<int64_t> positions;
  std::vector<int64_t> offsets = {0};
  std::vector<uint8_t> generated;
  std::vector<float> packed;
  for (const AttentionChunk& chunk : chunks) {
    slots.push_back(chunk.slot);
    positions.push_back(chunk.position);
    generated.push_back(chunk.generated ? 1 : 0);
    packed.insert(packed.end(), chunk.packed.begin(), chunk.packed.end());
    offsets.push_back(static_cast<int64_t>(packed.size()) / width);
  }
  const RaggedBatch batch = {static_cast<int64_t>(chunks.size()), slots.data(), positions.data(),
                             offsets.data(), generated.data()};
  std::vector<float> y(static_cast<size_t>(offsets.back() * hid), kNan);
  for (int64_t end = batch.rows * layer_.params.heads; end > 0;) {
    // Ranges of 1 to 16 units, with scratch of their own, as if each ran on another thread.
    shuffle_ = shuffle_ * 6364136223846793005ULL + 1442695040888963407ULL;
    const int64_t begin = std::max<int64_t>(end - 1 - static_cast<int64_t>(shuffle_ >> 60U), 0);
    std::vector<float> scratch(static_cast<size_t>(kernels::AttentionScratchFloats(layer_.params)),
                               kNan);
    kernels::AttentionForward(layer_.params, batch, packed.data(), width, states_.data(),
                              layer_.slot_floats(), y.data(), hid, scratch.data(), begin, end);
    end = begin;
  }
  std::vector<std::vector<float>> outputs;
  for (size_t i = 0; i < chunks.size(); ++i) {
    outputs.push_back(Tokens(y, hid, offsets[i], offsets[i + 1]));
  }
  return outputs;
}

std::vector<float> AttentionRunner::RunCut(const std::vector<float>& packed,
                                           const std::vector<int64_t>& lengths, int64_t generated) {
  const int64_t width = layer_.packed_width();
  const int64_t tokens = static_cast<int64_t>(packed.size()) / width;
  std::vector<float> y;
  size_t i = 0;
  for (int64_t t = 0; t < tokens;) {
    int64_t end = std::min(t + lengths[std::min(i++, lengths.size() - 1)], tokens);
    if (t < generated) end = std::min(end, generated);
    AFT_CHECK(end > t);
    const std::vector<float> part = Run({{0, t, Tokens(packed, width, t, end), t >= generated}})[0];
    y.insert(y.end(), part.begin(), part.end());
    t = end;
  }
  return y;
}

std::vector<std::vector<float>> RunEncode(const AttentionLayer& layer,
                                          const std::vector<std::vector<float>>& sequences,
                                          const std::vector<std::vector<float>>& masks) {
  const int64_t width = layer.packed_width();
  const int64_t hid = layer.params.hid();
  std::vector<int64_t> offsets = {0};
  std::vector<float> packed;
  std::vector<float> mask;
  int64_t longest = 0;
  for (const std::vector<float>& sequence : sequences) {
    packed.insert(packed.end(), sequence.begin(), sequence.end());
    offsets.push_back(static_cast<int64_t>(packed.size()) / width);
    longest = std::max(longest, offsets.back() - offsets[offsets.size() - 2]);
  }
  for (const std::vector<float>& one : masks) mask.insert(mask.end(), one.begin(), one.end());
  const SequenceBatch batch = {static_cast<int64_t>(sequences.size()), offsets.data(),
                               masks.empty() ? nullptr : mask.data()};
  std::vector<float> y(static_cast<size_t>(offsets.back() * hid), kNan);
  for (int64_t unit = batch.sequences * layer.params.heads; unit-- > 0;) {
    std::vector<float> scratch(
        static_cast<size_t>(kernels::AttentionEncodeScratchFloats(layer.params, longest)), kNan);
    kernels::AttentionEncode(layer.params, batch, packed.data(), width, y.data(), hid,
                             scratch.data(), unit, unit + 1);
  }
  std::vector<std::vector<float>> outputs;
  for (size_t i = 0; i < sequences.size(); ++i) {
    outputs.push_back(Tokens(y, hid, offsets[i], offsets[i + 1]));
  }
  return outputs;
}

}  // namespace aft
