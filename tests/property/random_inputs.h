#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace aft {

// The source of a test's random inputs. They are the same in every run and on every machine, unless
// AFT_TEST_SEED gives another seed (`./dev test --seeds N` draws seeds).
class TestRandom {
 public:
  TestRandom();

  double Normal() { return normal_(engine_); }
  double Uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  int64_t Below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine_); }

  std::vector<float> Normals(int64_t n, double scale = 1.0);

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
};

// Names of key distributions. With some of them a kernel gives NaN if it subtracts no maximum, or a
// maximum over more keys than the visible ones.
extern const std::vector<std::string> kKeySets;

// Packed q, k, v [tokens, 3 * hid]: queries and values N(0, 1), keys of the named set.
std::vector<float> RandomQkv(TestRandom& random, const std::string& key_set, int64_t tokens,
                             int64_t hid);

}  // namespace aft
