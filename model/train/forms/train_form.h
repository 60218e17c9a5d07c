#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "model/config/config.h"
#include "model/mixers/tables.h"

namespace aft {

// The state that one segment of a text passes to the next one in truncated back-propagation. It is
// detached and fp32. Empty places hold a key of kEmptyKey and a value of 0, so that they weigh
// nothing.
//   RWKV: only `sums`, the state of the kernels (model/kernels/wkv/wkv.h).
//   prefix_block H > 0: the last H tokens.
//   otherwise: entry 0 stands for all older tokens (the log-sum-exp of their keys, and the weighted
//   mean of their values; this is exact), then the last window - 1 tokens.
struct MixerCarry {
  at::Tensor k, v;  // [B, C, hid]
  at::Tensor sums;  // wkv4 [B, 3, hid]: numerator, denominator, maximum; wkv7 [B, heads, N, N]
};

// Whether segments of a text can be trained with the state carried from one to the next: causal
// AFT-simple and AFT-local, without positions, and RWKV.
bool CanCarry(const MixerConfig& config);

// An empty carry for `batch` sequences. Rows of it may be copied over a carry to restart a
// sequence. REQUIRES: CanCarry.
MixerCarry EmptyMixerCarry(const MixerConfig& config, int64_t batch, int64_t hid);

struct TrainFormOptions {
  // Null, or the state before this segment, which is replaced by the state after it. REQUIRES:
  // CanCarry, and T is a multiple of prefix_block.
  MixerCarry* carry = nullptr;
  // Type of the operands of large matrix products; Undefined: packed's own. bfloat16 trains faster.
  at::ScalarType gemm = at::ScalarType::Undefined;
  at::ScalarType GemmType(const at::Tensor& packed) const {
    return gemm == at::ScalarType::Undefined ? packed.scalar_type() : gemm;
  }
  // [B, T] or undefined: SequenceBatch::mask.
  at::Tensor mask;
  int64_t grid_width = 0;  // SequenceBatch::grid_width
  // The share of the attention weights that are zeroed at random; the others are scaled up. Only
  // the family kAttention has such weights; the other families ignore this.
  double dropout = 0;
};

// The mixer as a function of whole sequences that start at position 0 (or continue `carry`), made
// of differentiable LibTorch operators. It is the training form, the "plain LibTorch" side of the
// benchmarks, and one of the oracles of the kernels' tests. It is differentiable in packed and
// tables, and works in fp32 and fp64.
//
//   packed [B, T, PackedWidth()] -> [B, T, hid]
//   tables  by name, as ExpectedMixerTables lists them, of packed's type
//
// REQUIRES: T <= band_rows when that is set, or length_policy is not kError.
at::Tensor TrainForm(const MixerConfig& config, const at::Tensor& packed, const MixerTables& tables,
                     const TrainFormOptions& options = {});

}  // namespace aft
