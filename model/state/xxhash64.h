#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace aft {

// XXH64 of Yann Collet's xxHash: the same number on every machine, at several GB/s. It detects
// damage and distinguishes models. It is no defence against forged bytes.
uint64_t XxHash64(absl::string_view bytes, uint64_t seed);

}  // namespace aft
