#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/api/pooling.h"
#include "model/config/formats.h"
#include "model/config/kinds.h"

namespace aft {

// How a checkpoint stores the position bias w of AFT-local and AFT-full. Each form is folded into
// one table at load.
enum class BiasForm {
  kBand,     // w.band: column = offset; AFT-local
  kFull,     // w.full [T, T], [query, key]; AFT-full, and AFT-local (only the band is used)
  kFactors,  // w.u, w.v [T, bias_rank], w = u v^T (eq. 7); AFT-full and AFT-local
};

// The rule for positions beyond the last row of a bias table by absolute position.
enum class LengthPolicy {
  kError,  // a longer prompt is refused, and generation ends there
  kClamp,  // the last row's biases, by offset
  kZero,   // no bias
};

// The mixer of every layer: `"mixer": {...}` of config.json. Fields that the kind does not use
// (KindSpec) must keep their defaults.
struct MixerConfig {
  MixerKind kind = MixerKind::kAftLocal;
  // AFT-local: bias w acts on |t - t'| < window; 0 equals AFT-simple. AFT-conv: taps s of the
  // filter; odd when bidirectional.
  int64_t window = 0;
  // T, the rows of a bias table by absolute position. AFT-local with kBand: 0 means one
  // shift-invariant row, without a length limit. AFT-full, location and the other forms of
  // AFT-local need T > 0.
  int64_t band_rows = 0;
  // H > 0: staggered prefix restart (causal AFT-simple and AFT-local). Time is cut into blocks of H
  // tokens. Token t sees only tokens of its own block and of the one before, at constant cost.
  // These are between H + 1 and 2H tokens. 0: token t sees every token before it (the paper's
  // form). REQUIRES: 0 or >= max(window, 1).
  int64_t prefix_block = 0;

  bool causal = true;  // false: every token sees the whole text; encoders only
  int64_t hidden = 0;  // width of values and output; 0: d_model
  // AFT-conv, block-local, dot product, cosine, additive, wkv7. It must divide the width.
  int64_t heads = 1;
  BiasForm bias = BiasForm::kBand;  // AFT-local, AFT-full
  int64_t bias_rank = 0;            // columns of w.u and w.v
  LengthPolicy length_policy = LengthPolicy::kError;
  Number ring = Number::kFp32;  // fp32 or bf16: causal AFT-local, AFT-full, AFT-conv

  // AFT-conv: conv.w is normalised per head, w <- gamma (w - mean) / (std + std_eps) + beta (eq.
  // 8).
  bool reparameterized = false;
  float std_eps = 0.0F;
  bool unbiased_std = true;
  bool grid = false;  // 2-D filter [h, s, s] on images; bidirectional only

  int64_t block_size = 0;  // block-local
  // Block-local: every token also sees the first one. In a bidirectional mixer the first token also
  // sees every token.
  bool global_token = true;
  bool full_decode = false;  // block-local: generated tokens see everything before them, as in the
                             // reference's generation (but not its prefill); the state grows
  int64_t score_width = 0;   // additive: width of q and k per head

  // wkv7: the ranks of its decay, in-context learning rate, value mix and output gate.
  int64_t decay_rank = 0;
  int64_t rate_rank = 0;
  int64_t value_rank = 0;
  int64_t gate_rank = 0;
  bool initial_state = false;  // wkv7: a text begins from a table (state tuning), not from zeros
};

enum class Architecture {
  kDecoderLm,  // tokens -> logits; generates and scores
  kEncoder,    // tokens -> vectors
  kMixer,      // one mixer with its projections, vectors -> vectors: an imported module
};
enum class FeedForwardKind {
  kMlp,              // down(activation(up(x)))
  kChannelMix,       // RWKV-7: the same without biases, of the token-shifted x
  kGatedChannelMix,  // RWKV-4: sigmoid(gate(x)) * that, where the gate has its own token shift
};
enum class PositionKind {
  kNone,
  kLearned,     // position.weight [position_rows, d]
  kSinusoidal,  // sin(t / 10000^(2i/d)), cos(...) in columns 2i, 2i + 1; no limit
};

// config.json of a checkpoint ("format_version": 1), validated.
struct NetworkConfig {
  Architecture architecture = Architecture::kDecoderLm;
  // kMixer: 0, and d_ff too; it has one layer, and neither a feed-forward nor norms.
  int64_t vocab_size = 0;
  int64_t d_model = 0;
  int64_t n_layers = 0;
  FeedForwardKind feed_forward = FeedForwardKind::kMlp;
  int64_t d_ff = 0;
  Activation activation = Activation::kGeluTanh;
  float norm_eps = 1e-5F;
  PositionKind position = PositionKind::kNone;
  int64_t position_rows = 0;     // > 0 when position is kLearned, else 0
  float embedding_scale = 1.0F;  // x = embed[token] * embedding_scale + position
  bool embedding_norm = false;   // x is normalised before the first layer
  // false: x += f(norm(x)), where f is the mixer and then the feed-forward, and a last norm follows
  // the layers. true, as in BERT: x = norm(x + f(x)), and no norm follows the layers.
  bool post_norm = false;
  // false: the network has no last norm before the head or the vectors.
  bool final_norm = true;
  // N: only every Nth layer ends with a feed-forward, the last layer among them. The other layers
  // are a mixer alone: 2 makes blocks of two mixers and a feed-forward.
  int64_t feed_forward_every = 1;
  bool qkv_bias = true;  // layers.N.mixer.qkv.bias exists
  // kEncoder: a token's vector is a logit for each entry of the vocabulary, as in models that fill
  // in masked tokens. Not allowed together with labels.
  bool vocabulary_head = false;
  bool head_bias = true;        // head over the vocabulary: head.bias exists
  bool tie_embeddings = false;  // head over the vocabulary: head.weight is embed.weight
  // Tokens of one sequence; 0: unlimited. Required by mixers whose state grows; at most
  // position_rows; equals mixer.band_rows when that is set and length_policy is kError.
  int64_t max_seq_len = 0;
  MixerConfig mixer;
  // "bytes", "chars", "bpe" or "world"; empty for kMixer, for images (mixer.grid), whose ids are
  // pixels, and for encoders that take ids alone ("none").
  std::string tokenizer = "bytes";
  // kEncoder: ids that are added before and after those of every text.
  std::vector<int32_t> text_prefix, text_suffix;
  // kEncoder: the classes of a classifier, which has a head. A token's vector is then a logit for
  // each label, and the mean of these vectors is the text's. Empty: a token's vector is the output
  // of the layers.
  std::vector<std::string> labels;
  // kEncoder without a head: how the model was made to form the vector of a text. A request may ask
  // for another way. Not kNone.
  Pooling pooling = Pooling::kMean;
  bool normalize = false;  // the vector of a text is divided by its Euclidean length
};

// Parses and validates. INVALID_ARGUMENT names the key ("mixer.window") and what is allowed;
// unknown keys are refused.
absl::StatusOr<NetworkConfig> ParseNetworkConfig(absl::string_view json);

// Formats a config as canonical JSON, with indents of two spaces and a final newline; keys at their
// defaults are left out. The result parses back to an equal config.
std::string FormatNetworkConfig(const NetworkConfig& config);

const char* MixerKindName(MixerKind kind);  // "aft_simple", "aft_local", ...

// Width of the values and of the output of the mixer.
inline int64_t MixerWidth(const NetworkConfig& config) {
  return config.mixer.hidden > 0 ? config.mixer.hidden : config.d_model;
}

// Whether the network has a head over the vocabulary.
inline bool HasVocabularyHead(const NetworkConfig& config) {
  return config.architecture == Architecture::kDecoderLm || config.vocabulary_head;
}

// Whether the feed-forward reads the token before each token too, and so keeps a state.
inline bool ShiftsFeedForward(const NetworkConfig& config) {
  return config.feed_forward != FeedForwardKind::kMlp;
}

inline bool HasFeedForward(const NetworkConfig& config, int64_t layer) {
  return (layer + 1) % config.feed_forward_every == 0;
}

// Whether a layer that has a feed-forward has a norm of its own for it.
inline bool HasSecondNorm(const NetworkConfig& config, int64_t layer) {
  return !config.post_norm || config.final_norm || layer + 1 < config.n_layers;
}

// Whether there is a norm after all layers.
inline bool HasNormBehind(const NetworkConfig& config) {
  return !config.post_norm && config.final_norm;
}

// Rows of head.weight: the vocabulary, or the labels of a classifier; 0: there is no head.
inline int64_t HeadRows(const NetworkConfig& config) {
  return HasVocabularyHead(config) ? config.vocab_size : static_cast<int64_t>(config.labels.size());
}

// Whether a sequence's state grows with its length, up to max_seq_len.
bool StateGrows(const MixerConfig& mixer);

// Number of weights of a network with this config.
int64_t CountParameters(const NetworkConfig& config);
// Bytes of these weights in fp32.
inline int64_t Fp32Bytes(const NetworkConfig& config) { return 4 * CountParameters(config); }

}  // namespace aft
