// Sealed states: nothing that was not sealed here opens, whatever it is.
#include <string>

#include "base/check.h"
#include "server/states/state_sealer.h"
#include "tests/fuzz/target.h"

namespace aft::fuzz {

const MemoryBound kMemory = {.fixed = 1 << 20, .per_byte = 16};

}  // namespace aft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aft;
  using namespace aft::server;
  static const auto& sealer = *new StateSealer(*StateSealer::Create({}));
  static const auto& good = *new std::string([] {
    SequenceState state;
    state.snapshot = std::string(200, 's');
    state.tokens = 5;
    state.had = {{.id = 1, .sampled = 2}};
    return *sealer.Seal(state);
  }());
  const absl::string_view bytes = fuzz::AsText(data, size);
  // As it is, and in the place of a part of a good one.
  for (const std::string& sealed :
       {std::string(bytes),
        good.substr(0, good.size() - good.size() % (size + 1)) + std::string(bytes)}) {
    const auto opened = sealer.Open(sealed);
    if (opened.ok()) {
      AFT_CHECK(sealed == good);
      fuzz::Saw("ok");
      continue;
    }
    AFT_CHECK(absl::IsInvalidArgument(opened.status()));
    fuzz::Saw(opened.status().message());
  }
  return 0;
}
