#pragma once

#include <string>

namespace aft::kernels {

// The instruction set that the CPU kernels use on this machine: "AVX-512 with VNNI, BF16 and AMX",
// "AVX-512 with VNNI and BF16", "AVX-512 with VNNI", "AVX-512", "AVX2", "SSE4" or "portable"; on
// ARM "NEON with dot products" or "NEON". The environment variable AFT_INSTRUCTION_SET (AVX-512,
// AVX2 or SSE4; on ARM NEON) limits it, so that the speed and the numerics of a lesser machine can
// be had on a better one. The program ends at its start if the name is unknown.
std::string InstructionSet();

// Whether products use instructions that only some CPUs with AVX-512 or NEON have, and for which
// Highway has no instruction set of its own. They are used only when AVX-512 or NEON is the set in
// use. AVX512-VNNI and ARM's dot products add four products of int8 at once, AVX512-BF16 two of
// bf16. Rows that were quantized (linear.h) with these instructions must also be multiplied with
// them.
bool HasInt8Dots();
bool HasBf16Dots();
// Whether products also use AMX, which needs a permission of the kernel. Those of int8 give the
// same bits as with AVX512-VNNI, those of bf16 do not give the bits of AVX512-BF16. True only if
// HasInt8Dots() and HasBf16Dots(), and never on ARM.
bool HasTiles();
void UseDots(bool use);  // for tests; has no effect where the CPU lacks them

// Whether a core of this CPU reads weights fastest as one stream, which its own prefetching
// follows, as AMD's do, and not as several streams with requests in software, as Intel's do. It
// changes the speed of products with few rows and none of their bits.
bool PrefersOneStream();
void PreferOneStream(bool prefer);  // for tests and benchmarks

}  // namespace aft::kernels
