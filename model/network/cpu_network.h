#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/layers/embedding.h"
#include "model/layers/feed_forward.h"
#include "model/layers/layer_norm.h"
#include "model/layers/mixer_layer.h"
#include "model/mixers/families.h"
#include "model/network/activations.h"
#include "model/network/check_tensors.h"
#include "model/network/network.h"

namespace aft {

// One layer: x += out(mixer(qkv(norm1(x)))), then x += feed_forward(norm2(x)); with post_norm
// x = norm1(x + out(mixer(qkv(x)))), then x = norm2(x + feed_forward(x)). Not every layer has a
// feed-forward (HasFeedForward).
struct CpuLayer {
  // The parts around the mixer. Null for a bare mixer: x = out(mixer(qkv(x))).
  struct Rest {
    LayerNormLayer norm1;
    std::optional<LayerNormLayer> norm2 = {};  // HasSecondNorm
    std::optional<FeedForward> feed_forward = {};
  };

  MixerLayer mixer;
  std::optional<Rest> rest;

  // The states that the layer's parts keep of a sequence, the mixer's first. They are parts of a
  // state pool.
  std::vector<StateSpec> state_specs(const NetworkConfig& config) const {
    std::vector<StateSpec> specs = ShiftStateSpecs(config);
    specs.insert(specs.begin(), mixer.mixer().state_spec());
    return specs;
  }
};

// The network on the CPU (see Network). Row i of the results of a step or of Encode has the same
// bits whatever the other rows are, however a text is cut into chunks, and however many threads
// work. Calls cannot fail once Allocate has succeeded. Thread-compatible.
class CpuNetwork {
 public:
  struct Batch {
    RaggedBatch rows;
    int64_t tokens = 0;            // of all rows
    const int32_t* ids = nullptr;  // [tokens], below vocab_size
    const int64_t* outputs = nullptr;
    int64_t output_count = 0;
  };
  struct Texts {
    SequenceBatch sequences;
    int64_t tokens = 0;
    const int32_t* ids = nullptr;
    const float* const* vectors = nullptr;  // of each sequence [its tokens, d], instead of ids
    // Null, or for a bare mixer the vectors that its keys (may be null) and values are made of, in
    // the form of `vectors`.
    const float* const* keys = nullptr;
    const float* const* values = nullptr;
  };

  // Packs the matrices in `format`, one that the CPU has. It reads `tensors` twice, layer by layer,
  // and does not keep them.
  // Errors: DATA_LOSS (CheckTensors), INVALID_ARGUMENT (wider than the format can),
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<CpuNetwork>> Create(const NetworkConfig& config,
                                                            const TensorSource& tensors,
                                                            Number format = Number::kFp32);

  // Allocates the activations of steps (or texts) of up to `max_tokens`. `executor` is borrowed.
  // RESOURCE_EXHAUSTED when memory is short.
  absl::Status Allocate(int64_t max_tokens, const Executor& executor);
  // Bytes that Allocate takes. The static function is for any network whose mixers need at most
  // `scratch_floats` floats of scratch memory per thread.
  int64_t WorkspaceBytes(int64_t max_tokens, int threads) const;
  static int64_t WorkspaceBytes(const NetworkConfig& config, Number format, int64_t scratch_floats,
                                int64_t max_tokens, int threads);
  // The scratch memory that a mixer of such a network needs per thread, in floats.
  static int64_t ScratchFloats(const NetworkConfig& config, const Mixer& mixer, int64_t max_tokens);

  const NetworkConfig& config() const { return config_; }
  Number format() const { return arena_.format(); }
  int64_t weight_bytes() const;                          // the mixers' tables included
  uint64_t fingerprint() const { return fingerprint_; }  // CheckTensors
  std::vector<StateSpec> state_specs() const;

  absl::Status Embed(const Batch& batch);
  absl::Status Embed(const Texts& texts);
  absl::Status Mix(int64_t layer, const Batch& batch, const std::vector<StateView>& states);
  absl::Status Encode(int64_t layer, const Texts& texts);
  absl::Status ShiftFeedForward(int64_t layer, const Batch& batch,
                                const std::vector<StateView>& states);
  absl::Status Keep(const int64_t* outputs, int64_t count);
  absl::Status Finish(int64_t layer, int64_t count);
  absl::Status FinalNorm(int64_t count);

  // Logits [count, HeadRows()], dense, of the outputs [first, first + count) of the last step, or
  // of these tokens of the last texts. They come in parts, so that a long text to score needs no
  // matrix of tokens times vocabulary. Valid until the next call. REQUIRES: count <=
  // max_logit_rows().
  absl::StatusOr<const float*> Logits(int64_t first, int64_t count);
  int64_t max_logit_rows() const { return max_logit_rows_; }

  // Vectors [tokens, d], dense, of all tokens of the last texts, or of the outputs of the last
  // step: what Logits reads. Valid until the next call.
  const float* vectors() const { return activations_->x; }

 private:
  CpuNetwork(const NetworkConfig& config, uint64_t fingerprint, WeightArena arena);
  absl::Status LoadLayers(const TensorSource& source);

  void NormEmbeddings(int64_t tokens);              // normalises x if embedding_norm is set
  int64_t ScratchFloats(int64_t max_tokens) const;  // the most that a mixer asks for, per thread

  const NetworkConfig config_;
  const uint64_t fingerprint_;
  WeightArena arena_;
  std::optional<Embedding> embedding_;  // null in a bare mixer
  std::optional<LayerNormLayer> embedding_norm_;
  std::vector<CpuLayer> layers_;
  std::vector<size_t> first_state_ = {0};  // of each layer, in state_specs(), and their number
  std::optional<LayerNormLayer> norm_;     // HasNormBehind; null in a bare mixer
  std::optional<LinearLayer> head_;        // language models and classifiers

  std::optional<Activations> activations_;
  AlignedBuffer logits_;     // [max_logit_rows_, HeadRows()]
  AlignedBuffer quantized_;  // Workspace::quantized
  int64_t max_logit_rows_ = 0;
};

}  // namespace aft
