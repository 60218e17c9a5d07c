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

// The config file of aft-train: a JSON object. docs/models.md describes its fields; "network" holds
// a checkpoint's config.json. Unknown keys are refused, and so are keys that the objective does not
// use. ReadTrainConfig makes all paths relative to the config file's folder.
struct TrainConfig {
  NetworkConfig network;
  ObjectiveKind objective = ObjectiveKind::kNextTokens;
  double held_out = 0.05;

  // ---- Data of next_tokens and masked_tokens: running text. The end of every file is held out.
  std::vector<std::string> texts;
  int64_t total_tokens = 40'000'000;
  int64_t eval_tokens = 32'768;

  // ---- Data of labels and pairs: examples. The held-out ones are spread evenly over the lines.
  std::vector<std::string> examples;
  int64_t epochs = 40;
  int64_t eval_examples = 2'000;

  // ---- Texts.
  // Empty: the tokenizer of `initial` or, without that, a vocabulary of at most network.vocab_size
  // tokens that is learned from the texts that are trained on.
  std::string tokenizer;
  int64_t segment = 512;
  int64_t eval_every_steps = 0;  // 0: a twentieth of the run's steps, in [1, 500]

  // ---- next_tokens
  // A stream reads its text segment by segment and carries its state from one to the next
  // (truncated back-propagation). With this probability it jumps to a new place with an empty state
  // instead. When no state can be carried (EmptyNetworkCarry, train_network.h) every segment is at
  // a new place.
  double restart_probability = 0.1;

  // ---- masked_tokens (BERT, arXiv 1810.04805, section 3.1): of the tokens that the network has to
  // find, 80 % are replaced by mask_token, 10 % by a random token, and 10 % stay as they are.
  double mask_probability = 0.15;
  int64_t mask_token = 0;

  // ---- labels, of texts
  // > 0: the length of a step's texts is drawn between this number and `segment`, evenly on a
  // logarithmic scale.
  int64_t least_tokens = 0;

  // ---- labels, of images
  std::string images;  // a file as ReadImages takes it; its last lines are held out
  int64_t image_width = 0;
  int64_t shift = 0;
  int64_t noise = 0;

  // ---- pairs (InfoNCE with the other pairs of a batch as negatives, arXiv 1807.03748)
  double temperature = 0.05;

  // ---- All objectives
  std::string initial;
  int64_t batch = 8;
  double learning_rate = 3e-3;
  int64_t warmup_steps = 100;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double weight_decay = 0.1;  // matrices only: no norms, biases or position tables
  double clip_norm = 1.0;
  StartRule start = StartRule::kNarrow;
  double weight_spread = 0.02;
  BiasStart bias_start = BiasStart::kSlope;
  double dropout = 0.0;
  double embedding_dropout = 0.0;
  double feed_forward_dropout = 0.0;
  double attention_dropout = 0.0;
  bool bf16 = true;  // weights and sums stay fp32
  uint64_t seed = 1;
  int64_t threads = 0;

  // Whether the run learns labels of images.
  bool learns_images() const { return objective == ObjectiveKind::kLabels && network.mixer.grid; }
};

const char* ObjectiveName(ObjectiveKind kind);

// The tokens that the network's tokenizer adds around every text.
inline int64_t FrameTokens(const NetworkConfig& network) {
  return static_cast<int64_t>(network.text_prefix.size() + network.text_suffix.size());
}

// INVALID_ARGUMENT, naming `segment`, when the network cannot take segments of that many tokens.
// ReadTrainConfig has checked a config's segment with the config's own network.
absl::Status CheckSegment(int64_t segment, const NetworkConfig& network);

// Reads and validates the file. Errors: NOT_FOUND, or INVALID_ARGUMENT naming file and key.
absl::StatusOr<TrainConfig> ReadTrainConfig(const std::string& path);

}  // namespace aft
