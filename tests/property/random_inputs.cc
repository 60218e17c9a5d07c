#include "tests/property/random_inputs.h"

#include <cstdlib>

#include "base/check.h"

namespace aft {
namespace {

uint64_t Seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("AFT_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : uint64_t{1};
  }();
  return seed;
}

double RandomKey(TestRandom& random, const std::string& key_set, double time) {
  if (key_set == "n1") return random.Normal();
  if (key_set == "n10") return 10 * random.Normal();
  if (key_set == "u100") return random.Uniform(-100, 100);
  if (key_set == "u1e4") return random.Uniform(-1e4, 1e4);
  if (key_set == "rising") return -1e4 + 2e4 * time;
  if (key_set == "falling") return 1e4 - 2e4 * time;
  if (key_set == "const+1e4") return 1e4 + random.Normal();
  if (key_set == "const-1e4") return -1e4 + random.Normal();
  if (key_set == "equal") return 3.0;
  AFT_CHECK(key_set == "spike");
  const double spike = random.Below(2) == 0 ? 1e4 : -1e4;
  return random.Below(100) == 0 ? spike : random.Normal();
}

}  // namespace

const std::vector<std::string> kKeySets = {"n1",      "n10",       "u100",      "u1e4",  "rising",
                                           "falling", "const+1e4", "const-1e4", "equal", "spike"};

TestRandom::TestRandom() : engine_(Seed()) {}

std::vector<float> TestRandom::Normals(int64_t n, double scale) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = static_cast<float>(scale * Normal());
  return values;
}

std::vector<float> RandomQkv(TestRandom& random, const std::string& key_set, int64_t tokens,
                             int64_t hid) {
  std::vector<float> qkv = random.Normals(tokens * 3 * hid);
  for (int64_t t = 0; t < tokens; ++t) {
    const double time = static_cast<double>(t) / static_cast<double>(tokens);
    for (int64_t c = 0; c < hid; ++c) {
      qkv[static_cast<size_t>((t * 3 + 1) * hid + c)] =
          static_cast<float>(RandomKey(random, key_set, time));
    }
  }
  return qkv;
}

}  // namespace aft
