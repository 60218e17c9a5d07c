#pragma once

#include <string>

namespace aft::kernels {

// What the CPU kernels run with here: "AVX-512 with VNNI and BF16", "AVX-512", "AVX2", "SSE4" or
// "portable".
std::string InstructionSet();

// Whether products use what some CPUs have beside AVX-512, when that is the set in use; Highway has
// no sets of their own for it. AVX512-VNNI adds four products of int8 at once, AVX512-BF16 two of
// bf16. What is quantized (linear.h) with them is read with them.
bool HasInt8Dots();
bool HasBf16Dots();
void UseDots(bool use);  // for tests; has no effect where the CPU lacks them

}  // namespace aft::kernels
