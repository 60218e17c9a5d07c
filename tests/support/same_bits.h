#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace aft {

// Also where both are NaN.
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// [begin, end) of the tokens of a [T, width] matrix.
inline std::vector<float> Tokens(const std::vector<float>& matrix, int64_t width, int64_t begin,
                                 int64_t end) {
  return {matrix.begin() + begin * width, matrix.begin() + end * width};
}

}  // namespace aft
