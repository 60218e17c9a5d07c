// Faults that the driver must find behind two words of its dictionary. Which of them is there,
// AFT_PLANTED says.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/check.h"
#include "tests/fuzz/target.h"

namespace aft::fuzz {

const MemoryBound kMemory = {.fixed = 1 << 16, .per_byte = 16};

}  // namespace aft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text = aft::fuzz::AsText(data, size);
  const char* const given = std::getenv("AFT_PLANTED");
  const absl::string_view planted = given == nullptr ? "" : given;
  const bool first = absl::StrContains(text, "alpha");
  aft::fuzz::Saw(first ? "first step" : "none");
  if (!first || !absl::StrContains(text, "omega")) return 0;
  aft::fuzz::Saw("second step");
  AFT_CHECK(planted != "abort");
  if (planted == "exit") std::_Exit(0);
  if (planted == "memory") std::vector<char>(aft::fuzz::kMemory.fixed + 17 * size + 1);
  // Reached by what has been blown up alone.
  AFT_CHECK(planted != "large" || size < 20'000);
  return 0;
}
