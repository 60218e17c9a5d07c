#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace aft {

// XXH64 of Yann Collet's xxHash: the same number on every machine, several GB/s. Finds damage and
// tells models apart; not a defence against someone who forges bytes.
uint64_t XxHash64(absl::string_view bytes, uint64_t seed);

}  // namespace aft
