#ifndef AFT_TESTS_SUPPORT_SAME_BITS_H_
#define AFT_TESTS_SUPPORT_SAME_BITS_H_

#include <cstring>
#include <vector>

namespace aft {

// Also where both are NaN.
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace aft

#endif  // AFT_TESTS_SUPPORT_SAME_BITS_H_
