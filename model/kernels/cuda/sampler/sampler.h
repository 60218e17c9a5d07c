#pragma once

#include <cstdint>

#include "model/api/sampling_params.h"
#include "model/kernels/cuda/types.h"
#include "model/sampling/penalties.h"  // TokenCount

// Sampling and scoring on the GPU, with the order of operations, random numbers and ties of
// model/sampling/sampler.h, so that equal logits give the same tokens. (Tokens may differ where two
// tokens' scores, or the mass up to a token and top_p, agree to within rounding.) Logits stay on
// the device.
//
// A row's result depends on its own logits, slot and arguments alone, never on the other rows.
namespace aft::kernels::cuda {

// SamplingParams (model/api/sampling_params.h) of one slot in the form that the device reads.
struct SlotSampling : SamplingNumbers {
  uint64_t ends_from = 0;
  int32_t rules = -1;  // number of rules; -1: no logit is changed, not even by only_these
  uint32_t only_these = 0;
};
static_assert(sizeof(SlotSampling) == 64);  // on the host's compiler and on the device's

inline SlotSampling ForDevice(const SamplingParams& params) {
  SlotSampling sampling;
  static_cast<SamplingNumbers&>(sampling) = static_cast<const SamplingNumbers&>(params);
  if (params.rules != nullptr) {
    sampling.ends_from = params.ends_from;
    sampling.rules = static_cast<int32_t>(params.rules->rules.size());
    sampling.only_these = params.rules->only_these ? 1 : 0;
  }
  return sampling;
}

using aft::kMaxTopLogprobs;

// Weights are summed as integers, which bounds the number of tokens.
inline constexpr int64_t kMaxVocabSize = int64_t{1} << 23;

// The arrays that belong to the slots.
struct SamplerSlots {
  int64_t vocab_size = 0;
  const SlotSampling* params = nullptr;  // [slots]
  TokenCount* counts = nullptr;  // [slots, vocab_size]; read by slots with penalties, kept for all
  int32_t* last_sampled = nullptr;   // [slots]
  const LogitRule* rules = nullptr;  // [slots, kMaxLogitRules]; read by slots with rules
};

struct SampleRows {
  int64_t rows = 0;
  const int32_t* slot = nullptr;           // [rows]; negative: padding, nothing is written
  const uint64_t* output_index = nullptr;  // [rows], of the token to draw
  // [rows] or null; >= 0: this token is scored instead of drawing one, and counts stay as they are.
  const int32_t* target = nullptr;
};

struct SampleOut {
  int32_t* id = nullptr;         // [rows]; drawn, or the target; kNoToken: all logits are NaN or
                                 // -inf
  float* logprob = nullptr;      // [rows]; 0 when top_logprobs is -1 and there is no target
  int32_t* top_id = nullptr;     // [rows, kMaxTopLogprobs], best first; -1 after the last
  float* top_logprob = nullptr;  // [rows, kMaxTopLogprobs]
};

// logits [rows, vocab_size] fp32, rows `stride` apart; fastest if 16-byte aligned and `stride` is a
// multiple of 4. Draws tokens, counts each of them (WithSample) and sets last_sampled of its slot.
// If no token can be drawn, both stay as they are. A slot occurs at most once among the rows that
// draw. cudaErrorInvalidValue: vocab_size above kMaxVocabSize.
int Sample(const SamplerSlots& slots, const SampleRows& rows, const float* logits, int64_t stride,
           SampleOut out, Stream stream);

// Marks tokens as seen in the sequences of their slots. Negative slots are skipped, and so are ids
// below 0: they stand for a token that Sample drew, which is marked already.
int MarkSeen(const SamplerSlots& slots, const int32_t* tokens, const int32_t* token_slots,
             int64_t count, Stream stream);

// Removes all marks and counts of `slot`, and sets its last token to 0.
int ClearCounts(const SamplerSlots& slots, int32_t slot, Stream stream);

}  // namespace aft::kernels::cuda
