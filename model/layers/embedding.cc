#include "model/layers/embedding.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace aft {
namespace {

constexpr int64_t kCachedWaves = 4096;

int64_t PositionRows(const NetworkConfig& config) {
  switch (config.position) {
    case PositionKind::kNone:
      return 0;
    case PositionKind::kLearned:
      return config.position_rows;
    case PositionKind::kSinusoidal:
      return config.max_seq_len > 0 ? std::min(config.max_seq_len, kCachedWaves) : kCachedWaves;
  }
  return 0;
}

}  // namespace

Embedding::Embedding(const NetworkConfig& config, const WeightMap& tensors,
                     const kernels::PackedWeight& table, WeightArena& arena)
    : width_(config.d_model),
      scale_(config.embedding_scale),
      kind_(config.position),
      table_(table) {
  if (kind_ == PositionKind::kNone) return;
  positions_ = arena.Take(PositionFloats(config));
  if (kind_ == PositionKind::kLearned) {
    std::copy_n(TensorData(tensors, "position.weight"), config.position_rows * width_, positions_);
  } else {
    for (int64_t c = 0; c < width_; c += 2) {
      frequencies_.push_back(
          std::pow(10000.0, -static_cast<double>(c) / static_cast<double>(width_)));
    }
    for (int64_t t = 0; t < PositionRows(config); ++t) AddWaves(t, positions_ + t * width_);
  }
  position_rows_ = PositionRows(config);
}

int64_t Embedding::PositionFloats(const NetworkConfig& config) {
  return PositionRows(config) * config.d_model;
}

void Embedding::Forward(const int32_t* tokens, int64_t count, int64_t position, float* x) const {
  for (int64_t i = 0; i < count; ++i) {
    float* const vector = x + i * width_;
    kernels::UnpackOutput(table_, tokens[i], vector);
    for (int64_t c = 0; c < width_; ++c) vector[c] *= scale_;
  }
  AddPositions(count, position, x);
}

void Embedding::AddPositions(int64_t count, int64_t position, float* x) const {
  if (kind_ == PositionKind::kNone) return;
  for (int64_t t = position; t < position + count; ++t, x += width_) {
    if (t < position_rows_) {
      const float* learned = positions_ + t * width_;
      for (int64_t c = 0; c < width_; ++c) x[c] += learned[c];
    } else {
      AFT_CHECK(kind_ == PositionKind::kSinusoidal);
      AddWaves(t, x);
    }
  }
}

void Embedding::AddWaves(int64_t position, float* x) const {
  for (int64_t c = 0; c < width_; ++c) {
    const double angle = static_cast<double>(position) * frequencies_[static_cast<size_t>(c / 2)];
    x[c] += static_cast<float>(c % 2 == 0 ? std::sin(angle) : std::cos(angle));
  }
}

}  // namespace aft
