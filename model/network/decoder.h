#ifndef AFT_MODEL_NETWORK_DECODER_H_
#define AFT_MODEL_NETWORK_DECODER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/layers/decoder_block.h"
#include "model/network/config.h"
#include "model/state/aligned_buffer.h"
#include "model/state/state_pool.h"

namespace aft {

// Checks a checkpoint's tensors against ExpectedTensors: DATA_LOSS names every missing, surplus,
// misshaped, wrongly typed and non-finite one.
absl::Status CheckTensors(const NetworkConfig& config, const TensorMap& tensors);

// What one step computes. Borrowed arrays.
struct DecoderBatch {
  RaggedBatch rows;
  const int32_t* tokens = nullptr;  // [N] ids, below vocab_size
  const int64_t* outputs =
      nullptr;  // [output_count] tokens 0 .. N-1 whose logits are wanted, ascending
  int64_t output_count = 0;
};

// Activations for steps of up to `max_tokens` tokens, and each thread's scratch. Reused by every
// step.
class DecoderWorkspace {
 public:
  // RESOURCE_EXHAUSTED when the memory is not there.
  static absl::StatusOr<DecoderWorkspace> Create(const NetworkConfig& config, int64_t max_tokens,
                                                 int64_t scratch_floats, const Executor& executor);
  static int64_t Floats(const NetworkConfig& config, int64_t max_tokens, int64_t scratch_floats,
                        int threads);

 private:
  friend class Decoder;
  DecoderWorkspace(AlignedBuffer buffer, Workspace shared)
      : buffer_(std::move(buffer)), shared_(shared) {}

  AlignedBuffer buffer_;
  Workspace shared_;
  float* x_ = nullptr;      // [max_tokens, d] residual stream
  float* mixed_ = nullptr;  // [max_tokens, d]
  float* wide_ = nullptr;   // [max_tokens, DecoderBlock::WideWidth()]
};

// The language model: embedding, blocks, final norm, head. Owns the packed weights. Immutable and
// thread-safe; Forward calls at the same time need different slots and workspaces.
class Decoder {
 public:
  // Errors: DATA_LOSS (CheckTensors), RESOURCE_EXHAUSTED. `tensors` may be dropped afterwards.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const NetworkConfig& config,
                                                         const TensorMap& tensors);

  // Bytes of packed weights of a network with this config.
  static int64_t WeightBytes(const NetworkConfig& config);

  const NetworkConfig& config() const { return config_; }
  int64_t weight_bytes() const { return arena_.bytes(); }

  // One spec per layer: what StatePool::Create takes.
  std::vector<StateSpec> state_specs() const;

  // Largest scratch that any mixer asks for, per thread.
  int64_t scratch_floats() const;

  // Advances the sequences of `batch` and writes logits [output_count, vocab_size], dense.
  void Forward(const DecoderBatch& batch, StatePool& states, DecoderWorkspace& workspace,
               float* logits) const;

 private:
  Decoder(const NetworkConfig& config, WeightArena arena, const float* embed,
          std::vector<DecoderBlock> blocks, LayerNormLayer norm, LinearLayer head);

  NetworkConfig config_;
  WeightArena arena_;
  const float* embed_;  // [vocab_size, d_model]
  std::vector<DecoderBlock> blocks_;
  LayerNormLayer norm_;
  LinearLayer head_;
};

}  // namespace aft

#endif  // AFT_MODEL_NETWORK_DECODER_H_
