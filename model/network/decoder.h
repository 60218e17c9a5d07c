#ifndef AFT_MODEL_NETWORK_DECODER_H_
#define AFT_MODEL_NETWORK_DECODER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/network/activations.h"
#include "model/network/check_tensors.h"
#include "model/network/trunk.h"
#include "model/state/state_pool.h"

namespace aft {

// What one step computes. Borrowed arrays.
struct DecoderBatch {
  RaggedBatch rows;
  const int32_t* tokens = nullptr;  // [N] ids, below vocab_size
  // [output_count] tokens 0 .. N-1 whose logits are wanted, ascending
  const int64_t* outputs = nullptr;
  int64_t output_count = 0;
};

// The language model: embedding, blocks, final norm, head. Owns the packed weights. Immutable and
// thread-safe; calls at the same time need different slots and workspaces.
class Decoder {
 public:
  // Errors: DATA_LOSS (CheckTensors), RESOURCE_EXHAUSTED. `tensors` may be dropped afterwards.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const NetworkConfig& config,
                                                         const TensorMap& tensors);

  const NetworkConfig& config() const { return config_; }
  int64_t weight_bytes() const { return trunk_.arena.bytes(); }

  // NetworkFingerprint.
  uint64_t fingerprint() const { return fingerprint_; }

  // One spec per layer: what StatePool::Create takes.
  std::vector<StateSpec> state_specs() const;

  // Largest scratch that any mixer asks for, per thread.
  int64_t scratch_floats() const;

  // Advances the sequences of `batch`. The workspace then holds what Logits needs.
  void Forward(const DecoderBatch& batch, StatePool& states, Activations& workspace) const;

  // Logits [count, vocab_size], dense, of the outputs [first, first + count) of the last Forward:
  // in parts, so that the text of a long step needs no matrix of tokens times vocabulary. A row's
  // bits do not depend on how it is cut.
  void Logits(const Activations& workspace, int64_t first, int64_t count, float* logits) const;

 private:
  Decoder(const NetworkConfig& config, uint64_t fingerprint, Trunk trunk, LinearLayer head);

  NetworkConfig config_;
  uint64_t fingerprint_;
  Trunk trunk_;
  LinearLayer head_;
};

}  // namespace aft

#endif  // AFT_MODEL_NETWORK_DECODER_H_
