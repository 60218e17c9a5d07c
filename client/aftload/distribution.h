#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft::client {

// A distribution of the lengths of prompts or outputs. Thread-compatible; Draw is const.
class Distribution {
 public:
  // Parses one of
  //   N                           always N
  //   uniform:LOW:HIGH            every whole number from LOW to HIGH
  //   lognormal:MEDIAN:SIGMA[:MAX]  exp of a normal distribution with mean ln MEDIAN and standard
  //                               deviation SIGMA, rounded; values above MAX (default: 20 MEDIAN)
  //                               become MAX
  //   file:PATH                   the numbers in a file, one per line; all lines are equally likely
  // All lengths are from 1 to `max`. INVALID_ARGUMENT says what is wrong.
  static absl::StatusOr<Distribution> Parse(absl::string_view text, uint32_t max);

  static Distribution Always(uint32_t length);

  uint32_t Draw(std::mt19937_64& random) const;
  // The text that Parse got.
  const std::string& text() const { return text_; }

 private:
  enum class Kind { kUniform, kLognormal, kValues };

  absl::Status ReadValues(const std::string& path, uint32_t max);

  std::string text_;
  Kind kind_ = Kind::kUniform;
  uint32_t low_ = 1;   // uniform
  uint32_t high_ = 1;  // for uniform and lognormal: the largest
  double median_ = 1;
  double sigma_ = 0;
  std::vector<uint32_t> values_;
};

}  // namespace aft::client
