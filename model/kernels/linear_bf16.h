#pragma once

#include <cstdint>

#include "model/kernels/linear-inl.h"

// Products with bf16 weights whose rows are rounded to bf16 too: AVX512-BF16, which one object of
// AVX3 is compiled with (linear_bf16.cc).
namespace aft::kernels {
namespace HWY_NAMESPACE {

// Of one row: bf16, in pairs, an odd last one beside zero.
inline int64_t Bf16RowBytes(int64_t in) { return (in * 2 + 63) / 64 * 64; }

void RoundRows(const LinearRows& rows, int64_t in, int64_t begin, int64_t end, void* quantized);
void Bf16DotPanels(const LinearCall& call, int64_t begin, int64_t end);

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
