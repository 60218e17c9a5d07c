#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/config/config.h"

namespace aft {

// A run learns one of these. Each needs a certain kind of network:
enum class ObjectiveKind {
  kNextTokens,    // "next_tokens": a decoder_lm
  kMaskedTokens,  // "masked_tokens": an encoder with vocabulary_head
  kLabels,        // "labels": an encoder with labels, of images with mixer.grid, otherwise of texts
  kPairs,         // "pairs": an encoder without a head: texts of one pair get similar vectors
};

// These rules fill the tensors of a new network (start_values.h).
enum class StartRule {
  kNarrow,  // "narrow": our own rule
  kLinear,  // "linear": PyTorch's defaults of nn.Linear and nn.Embedding
  kXavier,  // "xavier": Glorot's uniform values for matrices
};
enum class BiasStart {
  kSlope,   // "slope": our own rule: near tokens weigh more
  kZeros,   // "zeros": the rule of labml's AFTLocal
  kXavier,  // "xavier": the rule of aft-pytorch
};

// The config file of aft-train: a JSON object. "network" holds a checkpoint's config.json. The
// other keys are the fields below; a field is optional unless its comment says "required". Unknown
// keys are refused, and so are keys that the objective does not use.
struct TrainConfig {
  NetworkConfig network;  // required
  // Required for an encoder without labels or vocabulary_head; otherwise the network decides it.
  ObjectiveKind objective = ObjectiveKind::kNextTokens;
  double held_out = 0.05;  // the fraction of the data that is never trained on

  // ---- Data of next_tokens and masked_tokens: running text. The end of every file is held out.
  std::vector<std::string> texts;     // required: text files, relative to the config file's folder
  int64_t total_tokens = 40'000'000;  // length of the run and of the learning-rate schedule
  int64_t eval_tokens = 32'768;       // of the held-out text, per evaluation during the run

  // ---- Data of labels and pairs: examples.
  // Required except for images: files of JSON Lines (examples.h), relative to the config file's
  // folder. The held-out examples are spread evenly over the lines.
  std::vector<std::string> examples;
  int64_t epochs = 40;            // length of the run and of the learning-rate schedule
  int64_t eval_examples = 2'000;  // held-out examples per evaluation during the run

  // ---- Texts.
  // With the network's tokenizer.kind "bpe" or "chars": the folder of the tokenizer's files
  // (tokenizers.h), relative to the config file's folder. Empty: the tokenizer of `initial` or,
  // without that, a vocabulary of at most network.vocab_size tokens that is learned from the texts
  // that are trained on.
  std::string tokenizer;
  // Tokens per stream and step; a multiple of mixer.prefix_block. For examples: the most tokens of
  // a text; the rest of a longer text is left out.
  int64_t segment = 512;
  int64_t eval_every_steps = 0;  // 0: a twentieth of the run's steps, in [1, 500]

  // ---- next_tokens
  // A stream reads its text segment by segment and carries its state from one to the next
  // (truncated back-propagation). With this probability it jumps to a new place with an empty state
  // instead. When no state can be carried (EmptyNetworkCarry, train_network.h) every segment is at
  // a new place.
  double restart_probability = 0.1;

  // ---- masked_tokens (BERT, arXiv 1810.04805, section 3.1)
  // The share of tokens that the network has to find. 80 % of these are replaced by mask_token, 10
  // % by a random token, and 10 % stay as they are.
  double mask_probability = 0.15;
  int64_t mask_token = 0;  // an id that texts do not contain, such as the byte 0

  // ---- labels, of texts
  // > 0: a step takes stretches of its texts at random places. Their length is drawn for each step
  // between this number and `segment` tokens, evenly on a logarithmic scale. 0: a step takes the
  // first `segment` tokens of its texts.
  int64_t least_tokens = 0;

  // ---- labels, of images
  std::string images;       // required: a file as ReadImages takes it; its last lines are held out
  int64_t image_width = 0;  // required: columns of an image
  int64_t shift = 0;        // images are moved by up to this many pixels, in both directions
  int64_t noise = 0;        // pixels change by up to this many levels

  // ---- pairs (InfoNCE with the other pairs of a batch as negatives, arXiv 1807.03748)
  double temperature = 0.05;  // divides the cosines

  // ---- All objectives
  std::string initial;          // the folder of a checkpoint from whose weights the run starts
  int64_t batch = 8;            // streams of text side by side, or examples
  double learning_rate = 3e-3;  // peak; linear warm-up, then cosine decay to a tenth
  int64_t warmup_steps = 100;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double weight_decay = 0.1;  // matrices only: no norms, biases or position tables
  double clip_norm = 1.0;     // global gradient norm
  StartRule start = StartRule::kNarrow;
  double weight_spread = 0.02;  // "narrow": standard deviation; narrow networks need more
  BiasStart bias_start = BiasStart::kSlope;  // position biases of AFT by offset or by pair
  double dropout = 0.0;                      // after each mixer and feed-forward
  double embedding_dropout = 0.0;            // after the positions are added
  double feed_forward_dropout = 0.0;         // inside the feed-forward, after its activation
  double attention_dropout = 0.0;  // of attention weights, for kinds of the attention family only
  bool bf16 = true;                // operands of matrix products; weights and sums stay fp32
  uint64_t seed = 1;
  int32_t threads = 0;  // 0: all cores

  // Whether the run learns labels of images.
  bool learns_images() const { return objective == ObjectiveKind::kLabels && network.mixer.grid; }
};

const char* ObjectiveName(ObjectiveKind kind);

// INVALID_ARGUMENT, naming `segment`, when the network cannot take segments of that many tokens.
// ReadTrainConfig has checked a config's segment with the config's own network.
absl::Status CheckSegment(int64_t segment, const NetworkConfig& network);

// Reads and validates the file. Errors: NOT_FOUND, or INVALID_ARGUMENT naming file and key.
absl::StatusOr<TrainConfig> ReadTrainConfig(const std::string& path);

}  // namespace aft
