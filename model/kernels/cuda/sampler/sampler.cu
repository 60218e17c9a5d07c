#include <cstdint>

#include "model/kernels/cuda/sampler/kernel.cuh"
#include "model/kernels/cuda/sampler/sampler.h"

namespace aft::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;  // for the kernels with one thread per token

// A small vocabulary needs only few threads: fewer threads wait for one another, and more rows run
// at once. The number is a power of two, which divides kBins.
unsigned ThreadsFor(int64_t vocab_size) {
  unsigned threads = 64;
  while (threads < sampler::kMaxThreads && threads * 4 < vocab_size) threads *= 2;
  return threads;
}

}  // namespace

int Sample(const SamplerSlots& slots, const SampleRows& rows, const float* logits, int64_t stride,
           SampleOut out, Stream stream) {
  if (slots.vocab_size < 1 || slots.vocab_size > kMaxVocabSize) return cudaErrorInvalidValue;
  const bool aligned = stride % 4 == 0 && Aligned(logits, 16);
  SharedLayout shared;
  const sampler::Space space(shared, static_cast<int32_t>(slots.vocab_size));
  return Launch(aligned ? sampler::SampleKernel<true> : sampler::SampleKernel<false>,
                dim3(static_cast<unsigned>(rows.rows)), dim3(ThreadsFor(slots.vocab_size)),
                shared.bytes(), stream, slots, rows, logits, stride, out);
}

int MarkSeen(const SamplerSlots& slots, const int32_t* tokens, const int32_t* token_slots,
             int64_t count, Stream stream) {
  return Launch(sampler::MarkSeenKernel, dim3(Blocks(count, kThreads)), dim3(kThreads), 0, stream,
                slots, tokens, token_slots, count);
}

int ClearCounts(const SamplerSlots& slots, int32_t slot, Stream stream) {
  return Launch(sampler::ClearCountsKernel, dim3(Blocks(slots.vocab_size, kThreads)),
                dim3(kThreads), 0, stream, slots, slot);
}

}  // namespace aft::kernels::cuda
