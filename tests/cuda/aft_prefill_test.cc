// AftPrefill against the formula in float64 and against the CPU's kernel.

#include <algorithm>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/cuda/aft_prefill_harness.h"

namespace aft::aft_prefill_test {
namespace {

using kernels::AftRing;
using kernels::cuda::Number;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// One prompt in one chunk: results, and the state against the CPU's.
void ExpectPrefills(TestRandom& random, const Layer& layer, const std::string& keys, int64_t tokens,
                    Storage storage = {}) {
  SCOPED_TRACE(layer.Name() + ", keys " + keys + ", " + std::to_string(tokens) + " tokens" +
               (storage.in == Number::kBf16 ? ", bf16" : ""));
  Runner runner(random, layer, 1, storage);
  const std::vector<float> qkv = runner.Input(random, keys, tokens);
  runner.ExpectNear(runner.Prefill({{0, 0, qkv}})[0], qkv);
  runner.OnCpu({{0, 0, qkv}});
  runner.ExpectStatesOfCpu({0});
}

TEST(AftPrefillTest, EveryWindow) {
  TestRandom random;
  for (const int64_t window : {0, 1, 2, 31, 32, 33, 65, 200}) {
    ExpectPrefills(random, {.hid = 8, .window = window}, "n1", 131);
    ExpectPrefills(random, {.hid = 8, .window = window}, "n1", 131, kBf16);
  }
}

TEST(AftPrefillTest, EveryLength) {
  TestRandom random;
  for (const int64_t window : {0, 1, 32, 65}) {
    std::vector<int64_t> lengths = {1, 2, 63, 64, 65, 131, 300};
    if (window > 1) lengths.insert(lengths.end(), {window - 1, window, window + 1});
    for (const int64_t tokens : lengths) {
      ExpectPrefills(random, {.hid = 8, .window = window}, "n1", tokens);
    }
  }
}

TEST(AftPrefillTest, EveryWidth) {
  TestRandom random;
  for (const int64_t hid : {1, 2, 8, 33, 64, 100, 192}) {
    for (const int64_t window : {0, 17}) {
      ExpectPrefills(random, {.hid = hid, .window = window}, "n1", 70);
      ExpectPrefills(random, {.hid = hid, .window = window}, "n1", 70, kBf16);
    }
  }
}

TEST(AftPrefillTest, EveryStorage) {
  TestRandom random;
  for (const int64_t window : {0, 9}) {
    for (const AftRing ring : {AftRing::kFp32, AftRing::kBf16}) {
      for (const Number out : {Number::kFp32, Number::kBf16, Number::kFp16}) {
        for (const int64_t hid : {12, 7}) {
          const Layer layer = {.hid = hid, .window = window, .ring = ring};
          ExpectPrefills(random, layer, "n1", 40, {Number::kFp32, out, true});
        }
      }
    }
  }
}

TEST(AftPrefillTest, ExtremeKeys) {
  TestRandom random;
  for (const std::string& keys : kKeySets) {
    for (const int64_t window : {0, 2, 33}) {
      ExpectPrefills(random, {.hid = 8, .window = window}, keys, 140);
      ExpectPrefills(random, {.hid = 8, .window = window}, keys, 140, kBf16);
    }
  }
}

TEST(AftPrefillTest, WideBiases) {
  TestRandom random;
  for (const double spread : {0.1, 5.0, 20.0, 60.0}) {
    for (const std::string keys : {"n1", "u100", "spike"}) {
      ExpectPrefills(random, {.hid = 8, .window = 33, .spread = spread}, keys, 140);
      ExpectPrefills(random, {.hid = 8, .window = 33, .spread = spread}, keys, 140, kBf16);
    }
  }
}

TEST(AftPrefillTest, BiasesByPositionEndWithTheLastRow) {
  TestRandom random;
  ExpectPrefills(random, {.hid = 8, .window = 20, .bias_rows = 100}, "n1", 140);
  ExpectPrefills(random, {.hid = 8, .window = 140, .bias_rows = 140}, "n10", 140);  // AFT-full
  ExpectPrefills(random, {.hid = 8, .window = 140, .bias_rows = 140}, "n10", 140, kBf16);
}

TEST(AftPrefillTest, PrefixRestart) {
  TestRandom random;
  for (const int64_t window : {0, 1, 20}) {
    for (const int64_t block :
         {std::max<int64_t>(window, 1), int64_t{23}, int64_t{64}, int64_t{100}}) {
      ExpectPrefills(random, {.hid = 8, .window = window, .prefix_block = block}, "n1", 220);
    }
  }
}

}  // namespace
}  // namespace aft::aft_prefill_test
