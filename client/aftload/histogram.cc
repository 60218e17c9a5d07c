#include "client/aftload/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace aft::client {
namespace {

constexpr uint64_t kBits = 6;  // 64 buckets for each power of two
constexpr uint64_t kPerPower = uint64_t{1} << kBits;
constexpr size_t kBuckets = (64 - kBits + 1) << kBits;

// Values below 64 have a bucket each. Above that, the bucket is the power of two and the next 6
// bits.
size_t BucketOf(uint64_t value) {
  if (value < kPerPower) return static_cast<size_t>(value);
  const auto shift = static_cast<uint64_t>(std::bit_width(value)) - kBits - 1;
  return static_cast<size_t>((shift << kBits) + (value >> shift));
}

// The middle of a bucket.
double ValueOf(size_t bucket) {
  if (bucket < 2 * kPerPower) return static_cast<double>(bucket);
  const size_t shift = (bucket >> kBits) - 1;
  const uint64_t mantissa = (bucket & (kPerPower - 1)) + kPerPower;
  return (static_cast<double>(mantissa) + 0.5) * std::exp2(static_cast<double>(shift));
}

}  // namespace

Histogram::Histogram() : buckets_(kBuckets) {}

void Histogram::Add(std::chrono::nanoseconds value) {
  const auto ns = static_cast<uint64_t>(std::max<int64_t>(value.count(), 0));
  ++buckets_[BucketOf(ns)];
  ++count_;
  sum_ns_ += static_cast<double>(ns);
  sum_squares_ns_ += static_cast<double>(ns) * static_cast<double>(ns);
  max_ns_ = std::max(max_ns_, ns);
}

void Histogram::Merge(const Histogram& other) {
  for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
  sum_squares_ns_ += other.sum_squares_ns_;
  max_ns_ = std::max(max_ns_, other.max_ns_);
}

double Histogram::Mean() const {
  return count_ == 0 ? 0 : sum_ns_ / static_cast<double>(count_) / 1e9;
}

double Histogram::StandardDeviation() const {
  if (count_ == 0) return 0;
  const double mean_ns = sum_ns_ / static_cast<double>(count_);
  const double variance = sum_squares_ns_ / static_cast<double>(count_) - mean_ns * mean_ns;
  return std::sqrt(std::max(variance, 0.0)) / 1e9;
}

double Histogram::Max() const { return static_cast<double>(max_ns_) / 1e9; }

double Histogram::Quantile(double q) const {
  if (count_ == 0) return 0;
  const auto rank =
      std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(q * static_cast<double>(count_))));
  uint64_t below = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    below += buckets_[i];
    if (below >= rank) return std::min(ValueOf(i) / 1e9, Max());
  }
  return 0;
}

}  // namespace aft::client
