#include "server/engine/pooling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace aft::server {
namespace {

void Normalize(float* vector, size_t width) {
  double squares = 0;
  for (size_t i = 0; i < width; ++i) squares += double{vector[i]} * double{vector[i]};
  if (squares == 0) return;
  const double scale = 1.0 / std::sqrt(squares);
  for (size_t i = 0; i < width; ++i) vector[i] = static_cast<float>(double{vector[i]} * scale);
}

// Zeroes the vectors of tokens that are not kept; for pooling, removes them instead.
void LeaveOut(const std::vector<uint8_t>& kept, bool pool, size_t width,
              std::vector<float>& vectors) {
  size_t end = 0;
  for (size_t token = 0; token < kept.size(); ++token) {
    const auto from = vectors.begin() + static_cast<std::ptrdiff_t>(token * width);
    const auto to = vectors.begin() + static_cast<std::ptrdiff_t>(end * width);
    if (!pool && kept[token] == 0) std::fill_n(from, width, 0.0F);
    if (!pool || kept[token] == 0) continue;
    if (to != from) std::copy_n(from, width, to);
    ++end;
  }
  if (pool) vectors.resize(end * width);
}

}  // namespace

void TextVectors::Add(std::vector<float> vectors) {
  const auto width = static_cast<std::ptrdiff_t>(width_);
  switch (pooling_) {
    case Pooling::kNone:
      if (vectors.size() == tokens_ * width_) {
        kept_ = std::move(vectors);
      } else {
        kept_.reserve(tokens_ * width_);
        kept_.insert(kept_.end(), vectors.begin(), vectors.end());
      }
      break;
    case Pooling::kMean:
      sum_.resize(width_, 0.0);
      for (size_t i = 0; i < vectors.size(); ++i) sum_[i % width_] += double{vectors[i]};
      break;
    case Pooling::kFirst:
      if (kept_.empty()) kept_.assign(vectors.begin(), vectors.begin() + width);
      break;
    case Pooling::kLast:
      kept_.assign(vectors.end() - width, vectors.end());
      break;
  }
}

std::vector<float> TextVectors::Take() {
  const auto count = static_cast<double>(tokens_);
  for (const double sum : sum_) kept_.push_back(static_cast<float>(sum / count));
  for (size_t i = 0; normalize_ && i < kept_.size(); i += width_) Normalize(&kept_[i], width_);
  return std::move(kept_);
}

std::vector<float> Pool(std::vector<float> vectors, int64_t width, Pooling pooling, bool normalize,
                        const std::vector<uint8_t>& kept) {
  const auto size = static_cast<size_t>(width);
  if (!kept.empty()) LeaveOut(kept, pooling != Pooling::kNone, size, vectors);
  TextVectors text(pooling, normalize, vectors.size() / size, width);
  text.Add(std::move(vectors));
  return text.Take();
}

bool AllFinite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

}  // namespace aft::server
