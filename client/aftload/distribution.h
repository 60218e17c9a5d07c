#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft::client {

// How long prompts or outputs are. Thread-compatible; drawing leaves it as it is.
class Distribution {
 public:
  // One of
  //   N                           always N
  //   uniform:LOW:HIGH            every whole number from LOW to HIGH
  //   lognormal:MEDIAN:SIGMA[:MAX]  exp of a normal distribution with mean ln MEDIAN and standard
  //                               deviation SIGMA, rounded; what is above MAX (default: 20 MEDIAN)
  //                               becomes MAX
  //   file:PATH                   the numbers of a file, a line each, every line as likely
  // All lengths are from 1 to `max`. INVALID_ARGUMENT says what is wrong.
  static absl::StatusOr<Distribution> Parse(absl::string_view text, uint32_t max);

  static Distribution Always(uint32_t length);

  uint32_t Draw(std::mt19937_64& random) const;
  // As it was given to Parse.
  const std::string& text() const { return text_; }

 private:
  enum class Kind { kUniform, kLognormal, kValues };

  absl::Status ReadValues(const std::string& path, uint32_t max);

  std::string text_;
  Kind kind_ = Kind::kUniform;
  uint32_t low_ = 1;   // uniform
  uint32_t high_ = 1;  // uniform and lognormal: the largest
  double median_ = 1;
  double sigma_ = 0;
  std::vector<uint32_t> values_;
};

}  // namespace aft::client
