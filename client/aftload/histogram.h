#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace aft::client {

// Counts durations in buckets of 1/64 of a power of two. Quantiles are accurate to 1.6 %, and the
// size does not depend on the number of values. Thread-compatible.
class Histogram {
 public:
  Histogram();

  // Negative values count as 0.
  void Add(std::chrono::nanoseconds value);
  void Merge(const Histogram& other);

  uint64_t count() const { return count_; }
  // In seconds; 0 when empty.
  double Mean() const;
  double StandardDeviation() const;  // of the values themselves, not an estimate for a population
  double Max() const;
  // The value that a share `q` of all values does not exceed, 0 <= q <= 1 (0: the smallest). In
  // seconds; 0 when empty.
  double Quantile(double q) const;

 private:
  std::vector<uint64_t> buckets_;
  uint64_t count_ = 0;
  double sum_ns_ = 0;
  double sum_squares_ns_ = 0;
  uint64_t max_ns_ = 0;
};

}  // namespace aft::client
