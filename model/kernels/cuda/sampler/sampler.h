#pragma once

#include <cstdint>

#include "model/api/sampling_params.h"
#include "model/kernels/cuda/types.h"
#include "model/sampling/penalties.h"  // TokenCount

// Sampling and scoring on the GPU: the same order of operations, random numbers and ties as
// model/sampling/sampler.h, so that equal logits give the same tokens. (Except where two tokens'
// scores, or the mass up to a token and top_p, agree to within rounding.) Logits stay on the
// device.
//
// A row's result depends on its own logits, slot and arguments alone, never on the other rows.
namespace aft::kernels::cuda {

// SamplingParams (model/api/sampling_params.h) of one slot, as the device reads it.
struct SlotSampling : SamplingNumbers {
  uint64_t ends_from = 0;
  uint32_t sequence = 0;
  int32_t rules = -1;  // how many the slot has; -1: nothing is changed, not even by only_these
  uint32_t only_these = 0;
  uint32_t unused = 0;
};
static_assert(sizeof(SlotSampling) == 64);  // for the host's compiler and for the device's

inline SlotSampling ForDevice(const SamplingParams& params) {
  SlotSampling sampling;
  static_cast<SamplingNumbers&>(sampling) = static_cast<const SamplingNumbers&>(params);
  sampling.sequence = params.sequence;
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

// What belongs to the slots.
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
  // [rows] or null; >= 0: score this token instead of drawing one; counts are left alone.
  const int32_t* target = nullptr;
};

struct SampleOut {
  int32_t* id = nullptr;         // [rows]; the target's; kNoToken: every logit is NaN or -inf
  float* logprob = nullptr;      // [rows]; 0 when top_logprobs is -1 and there is no target
  int32_t* top_id = nullptr;     // [rows, kMaxTopLogprobs], best first; -1 behind the last
  float* top_logprob = nullptr;  // [rows, kMaxTopLogprobs]
};

// logits [rows, vocab_size] fp32, rows `stride` apart: best a multiple of 4, from 16 bytes on.
// Draws, counts the drawn token (WithSample) and sets last_sampled of its slot; where there is none
// to draw, both stay as they are. A slot occurs once among the rows that draw.
// cudaErrorInvalidValue: vocab_size above kMaxVocabSize.
int Sample(const SamplerSlots& slots, const SampleRows& rows, const float* logits, int64_t stride,
           SampleOut out, Stream stream);

// Marks tokens as seen in the sequences of their slots; negative slots and ids below 0 are skipped:
// a token that Sample drew is seen already.
int MarkSeen(const SamplerSlots& slots, const int32_t* tokens, const int32_t* token_slots,
             int64_t count, Stream stream);

// Forgets what `slot` has seen; its last token is 0.
int ClearCounts(const SamplerSlots& slots, int32_t slot, Stream stream);

}  // namespace aft::kernels::cuda
