#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace aft {

// Whether the numbers have the same bits. NaN equals NaN if the bits are the same.
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// The rows [begin, end) of a [T, width] matrix, which has a row per token.
inline std::vector<float> Tokens(const std::vector<float>& matrix, int64_t width, int64_t begin,
                                 int64_t end) {
  return {matrix.begin() + begin * width, matrix.begin() + end * width};
}

}  // namespace aft
