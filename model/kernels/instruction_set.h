#pragma once

#include <string>

namespace aft::kernels {

// What the CPU kernels run with here: "AVX-512 with VNNI", "AVX-512", "AVX2", "SSE4" or "portable".
std::string InstructionSet();

}  // namespace aft::kernels
