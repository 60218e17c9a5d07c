// config.json. An accepted config is equal after writing and reading, and none of its sizes
// overflows.
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "model/config/config.h"
#include "model/config/tensors.h"
#include "tests/fuzz/target.h"

namespace aft::fuzz {

// The fixed part covers the tensor names of a thousand layers. A JSON value takes some words.
const MemoryBound kMemory = {.fixed = 8 << 20, .per_byte = 256};

}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft;
  const absl::StatusOr<NetworkConfig> config = ParseNetworkConfig(fuzz::AsText(data, size));
  if (!config.ok()) {
    const absl::string_view message = config.status().message();
    AFT_CHECK(absl::IsInvalidArgument(config.status()) && fuzz::IsMessage(message));
    return;
  }
  const std::string formatted = FormatNetworkConfig(*config);
  const absl::StatusOr<NetworkConfig> again = ParseNetworkConfig(formatted);
  AFT_CHECK(again.ok() && FormatNetworkConfig(*again) == formatted);

  AFT_CHECK(MixerWidth(*config) % config->mixer.heads == 0 || config->mixer.heads == 1);
  // The bytes of all weights, with a margin for a few multiples of them.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 64;
  int64_t count = 0;
  for (const TensorSpec& spec : ExpectedTensors(*config)) {
    int64_t product = 1;
    for (const int64_t dim : spec.shape) {
      AFT_CHECK(dim > 0 && !__builtin_mul_overflow(product, dim, &product));
    }
    AFT_CHECK(!__builtin_add_overflow(count, product, &count) && count <= kMost);
  }
  AFT_CHECK(CountParameters(*config) == count);
}
