#include "tests/property/attention_harness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "gtest/gtest.h"

namespace aft {
namespace {

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

}  // namespace aft
