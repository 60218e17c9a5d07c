#ifndef AFT_MODEL_KERNELS_CUDA_SAMPLER_H_
#define AFT_MODEL_KERNELS_CUDA_SAMPLER_H_

#include <cstdint>

#include "model/kernels/cuda/types.h"

// Sampling and scoring on the GPU: the same order of operations, random numbers and ties as
// model/sampling/sampler.h, so that equal logits give the same tokens. Logits stay on the device.
namespace aft::kernels::cuda {

// SamplingParams (model/sampling/params.h) of one slot, as the device reads it.
struct SlotSampling {
  float temperature = 1.0F;
  float top_p = 1.0F;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  int32_t top_k = 0;
  int32_t top_logprobs = -1;
  uint64_t seed = 0;
  uint32_t sequence = 0;
  uint32_t unused = 0;
};

inline constexpr int64_t kMaxTopLogprobs = 20;

// What belongs to the slots.
struct SamplerSlots {
  int64_t vocab_size = 0;
  const SlotSampling* params = nullptr;  // [slots]
  // [slots, vocab_size]: how often the sequence sampled each token (kSeen added when the token is
  // anywhere in it), saturating; read by slots with penalties, kept for all.
  uint16_t* counts = nullptr;
  int32_t* last_sampled = nullptr;  // [slots]
};
inline constexpr uint16_t kSeen = 0x8000;

struct SampleRows {
  int64_t rows = 0;
  const int32_t* slot = nullptr;           // [rows]; negative: padding, nothing is written
  const uint64_t* output_index = nullptr;  // [rows], of the token to draw
  // [rows] or null; >= 0: score this token instead of drawing one; counts are left alone.
  const int32_t* target = nullptr;
};

struct SampleOut {
  int32_t* id = nullptr;         // [rows]; kNoToken (-1): every logit is NaN or -inf
  float* logprob = nullptr;      // [rows]; 0 when top_logprobs is -1
  int32_t* top_id = nullptr;     // [rows, kMaxTopLogprobs], best first; -1 behind the last
  float* top_logprob = nullptr;  // [rows, kMaxTopLogprobs]
};

// logits [rows, vocab_size] fp32, rows `stride` apart. Draws, counts the drawn token and sets
// last_sampled of its slot.
int64_t SampleWorkspaceFloats(const SamplerSlots& slots, int64_t rows);
int Sample(const SamplerSlots& slots, const SampleRows& rows, const float* logits, int64_t stride,
           SampleOut out, float* workspace, Stream stream);

// Marks tokens as seen in the sequences of their slots; negative slots and ids below 0 are skipped.
int MarkSeen(const SamplerSlots& slots, const int32_t* tokens, const int32_t* token_slots,
             int64_t count, Stream stream);

// Forgets what `slot` has seen; makes `to`'s counts and last token those of `from`.
int ClearCounts(const SamplerSlots& slots, int32_t slot, Stream stream);
int CopyCounts(const SamplerSlots& slots, int32_t from, int32_t to, Stream stream);

}  // namespace aft::kernels::cuda

#endif  // AFT_MODEL_KERNELS_CUDA_SAMPLER_H_
