#include "model/gpu/gpu_step.h"

namespace aft {
namespace {

// Carves arrays from the start of a block. With a null block it only counts bytes.
class Carver {
 public:
  explicit Carver(void* block) : block_(static_cast<char*>(block)) {}

  // REQUIRES: types come in order of decreasing size, so that everything is aligned.
  template <typename T>
  void Take(T** array, int64_t count) {
    *array = block_ == nullptr ? nullptr : reinterpret_cast<T*>(block_ + bytes_);
    bytes_ += count * static_cast<int64_t>(sizeof(T));
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* const block_;
  int64_t bytes_ = 0;
};

}  // namespace

GpuStepInput::GpuStepInput(const GpuStepShape& shape, void* block) {
  Carver carver(block);
  carver.Take(&decode_position, shape.decode);
  carver.Take(&chunk_position, shape.chunks);
  carver.Take(&chunk_offset, shape.chunks > 0 ? shape.chunks + 1 : 0);
  carver.Take(&token_positions, shape.tokens);
  carver.Take(&outputs, shape.chunks > 0 ? shape.outputs : 0);
  carver.Take(&output_index, shape.outputs);
  carver.Take(&decode_slot, shape.decode);
  carver.Take(&decode_age, shape.decode);
  carver.Take(&chunk_slot, shape.chunks);
  carver.Take(&tokens, shape.tokens);
  carver.Take(&token_slots, shape.tokens);
  carver.Take(&output_slot, shape.outputs);
  carver.Take(&target, shape.outputs);
  carver.Take(&decode_generated, shape.decode);
  carver.Take(&chunk_generated, shape.chunks);
  bytes = carver.bytes();
}

GpuNetwork::Batch GpuStepInput::Batch(const GpuStepShape& shape, int64_t longest,
                                      const int32_t* last_sampled) const {
  GpuNetwork::Batch batch;
  batch.decode = {.rows = shape.decode,
                  .slot = decode_slot,
                  .position = decode_position,
                  .generated = decode_generated,
                  .age = decode_age};
  batch.chunks = {.rows = shape.chunks,
                  .slot = chunk_slot,
                  .position = chunk_position,
                  .offset = chunk_offset,
                  .generated = chunk_generated,
                  .tokens = shape.chunk_tokens(),
                  .longest = longest};
  batch.tokens = shape.tokens;
  batch.ids = tokens;
  batch.token_slots = token_slots;
  batch.token_positions = token_positions;
  batch.last_sampled = last_sampled;
  batch.outputs = shape.chunks > 0 ? outputs : nullptr;
  batch.output_count = shape.outputs;
  return batch;
}

GpuStepOutput::GpuStepOutput(int64_t outputs, void* block) {
  Carver carver(block);
  carver.Take(&id, outputs);
  carver.Take(&logprob, outputs);
  bytes_without_top = carver.bytes();
  carver.Take(&top_id, outputs * kernels::cuda::kMaxTopLogprobs);
  carver.Take(&top_logprob, outputs * kernels::cuda::kMaxTopLogprobs);
  bytes = carver.bytes();
}

kernels::cuda::SampleOut GpuStepOutput::Out(int64_t first) const {
  const int64_t top = first * kernels::cuda::kMaxTopLogprobs;
  return {id + first, logprob + first, top_id + top, top_logprob + top};
}

}  // namespace aft
