#include "client/aftload/distribution.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace aft::client {
namespace {

// Parses a length from 1 to `max`.
bool ParseLength(absl::string_view text, uint32_t max, uint32_t& length) {
  return absl::SimpleAtoi(text, &length) && length >= 1 && length <= max;
}

}  // namespace

absl::StatusOr<Distribution> Distribution::Parse(absl::string_view text, uint32_t max) {
  Distribution result;
  result.text_ = std::string(text);
  if (absl::string_view path = text; absl::ConsumePrefix(&path, "file:")) {
    AFT_RETURN_IF_ERROR(result.ReadValues(std::string(path), max));
    return result;
  }
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  bool ok = false;
  if (parts.size() == 1) {
    ok = ParseLength(parts[0], max, result.low_);
    result.high_ = result.low_;
  } else if (parts[0] == "uniform" && parts.size() == 3) {
    ok = ParseLength(parts[1], max, result.low_) && ParseLength(parts[2], max, result.high_) &&
         result.low_ <= result.high_;
  } else if (parts[0] == "lognormal" && (parts.size() == 3 || parts.size() == 4)) {
    result.kind_ = Kind::kLognormal;
    ok = absl::SimpleAtod(parts[1], &result.median_) && result.median_ >= 1 &&
         result.median_ <= max && absl::SimpleAtod(parts[2], &result.sigma_) &&
         result.sigma_ >= 0 && result.sigma_ <= 10;
    if (ok && parts.size() == 3) {
      result.high_ = static_cast<uint32_t>(std::min(20 * result.median_, static_cast<double>(max)));
    } else if (ok) {
      ok = ParseLength(parts[3], max, result.high_);
    }
  }
  if (ok) return result;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text,
                   "\" must be N, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA[:MAX] or file:PATH "
                   "with lengths from 1 to ",
                   max));
}

Distribution Distribution::Always(uint32_t length) {
  Distribution result;
  result.text_ = absl::StrCat(length);
  result.low_ = result.high_ = length;
  return result;
}

absl::Status Distribution::ReadValues(const std::string& path, uint32_t max) {
  kind_ = Kind::kValues;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const absl::string_view word = absl::StripAsciiWhitespace(line);
    if (word.empty()) continue;
    if (uint32_t value = 0; ParseLength(word, max, value)) {
      values_.push_back(value);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": \"", word, "\" is no length from 1 to ", max));
    }
  }
  if (!values_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read or holds no lengths"));
}

uint32_t Distribution::Draw(std::mt19937_64& random) const {
  switch (kind_) {
    case Kind::kUniform:
      return std::uniform_int_distribution<uint32_t>(low_, high_)(random);
    case Kind::kLognormal: {
      const double value = std::lognormal_distribution<double>(std::log(median_), sigma_)(random);
      return static_cast<uint32_t>(std::clamp(std::round(value), 1.0, static_cast<double>(high_)));
    }
    case Kind::kValues:
      return values_[std::uniform_int_distribution<size_t>(0, values_.size() - 1)(random)];
  }
  return 1;
}

}  // namespace aft::client
