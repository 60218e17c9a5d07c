#include "server/engine/pooling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace aft::server {
namespace {

std::vector<float> Mean(const std::vector<float>& vectors, size_t width) {
  std::vector<double> sum(width, 0.0);
  for (size_t i = 0; i < vectors.size(); ++i) sum[i % width] += double{vectors[i]};
  const size_t rows = vectors.size() / width;
  const auto count = static_cast<double>(rows);
  std::vector<float> mean(width);
  std::transform(sum.begin(), sum.end(), mean.begin(),
                 [count](double value) { return static_cast<float>(value / count); });
  return mean;
}

void Normalize(float* vector, size_t width) {
  double squares = 0;
  for (size_t i = 0; i < width; ++i) squares += double{vector[i]} * double{vector[i]};
  if (squares == 0) return;
  const double scale = 1.0 / std::sqrt(squares);
  for (size_t i = 0; i < width; ++i) vector[i] = static_cast<float>(double{vector[i]} * scale);
}

// Zeros for the vectors of tokens that have none; or, to pool, without them.
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

std::vector<float> Pool(std::vector<float> vectors, int64_t width, Pooling pooling, bool normalize,
                        const std::vector<uint8_t>& kept) {
  const auto size = static_cast<size_t>(width);
  if (!kept.empty()) LeaveOut(kept, pooling != Pooling::kNone, size, vectors);
  switch (pooling) {
    case Pooling::kNone:
      break;
    case Pooling::kMean:
      vectors = Mean(vectors, size);
      break;
    case Pooling::kFirst:
      vectors.resize(size);
      break;
    case Pooling::kLast:
      vectors.erase(vectors.begin(), vectors.end() - static_cast<std::ptrdiff_t>(width));
      break;
  }
  for (size_t i = 0; normalize && i < vectors.size(); i += size) Normalize(&vectors[i], size);
  return vectors;
}

bool AllFinite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

}  // namespace aft::server
