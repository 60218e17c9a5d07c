#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/config/config.h"

namespace aft {

// The config file of aft-train: a JSON object. "network" holds a checkpoint's config.json; the
// other keys are the fields below, each optional unless said otherwise. Unknown keys are refused.
struct TrainConfig {
  // Required: a decoder_lm, which learns texts, or a classifier of images (an encoder with labels
  // and mixer.grid).
  NetworkConfig network;
  double held_out = 0.05;  // fraction at the end of every file that is never trained on

  // Of a classifier.
  std::string images;       // required: a file as ReadImages takes it, beside the config file
  int64_t image_width = 0;  // required: columns of an image
  int64_t epochs = 40;      // length of the run and of the learning-rate schedule
  int64_t shift = 0;        // images are moved by up to so many pixels, in both directions
  int64_t noise = 0;        // pixels change by up to so many levels

  // Of a language model.
  std::vector<std::string> texts;  // required: text files, relative to the config file's folder
  // With the network's tokenizer.kind "bpe" or "chars": a folder, relative to the config file's,
  // with its files (tokenizers.h). Empty: a vocabulary of at most network.vocab_size tokens is
  // learned from the training parts of `texts`.
  std::string tokenizer;
  int64_t segment = 512;  // tokens per stream and step; a multiple of mixer.prefix_block
  int64_t total_tokens = 40'000'000;  // length of the run and of the learning-rate schedule
  // A stream reads on through its text, its state carried from segment to segment (truncated
  // back-propagation), and with this probability jumps to a new place with an empty state instead.
  // Where no state can be carried (EmptyNetworkCarry, train_network.h) every segment is at a new
  // place.
  double restart_probability = 0.1;

  int64_t eval_every_steps = 500;
  int64_t eval_tokens = 32'768;  // of the held-out text, per evaluation during the run

  // Of both.
  int64_t batch = 8;            // streams of text side by side, or images
  double learning_rate = 3e-3;  // peak; linear warm-up, then cosine decay to a tenth
  int64_t warmup_steps = 100;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double weight_decay = 0.1;    // matrices only: no norms, biases or position tables
  double clip_norm = 1.0;       // global gradient norm
  double weight_spread = 0.02;  // standard deviation of fresh weights; narrow networks need more
  double dropout = 0.0;         // after each mixer and feed-forward
  bool bf16 = true;             // operands of matrix products; weights and sums stay fp32
  uint64_t seed = 1;
  int32_t threads = 0;  // 0: all cores
};

// INVALID_ARGUMENT, naming `segment`, when the network cannot take segments of so many tokens. A
// config has passed it with its own network.
absl::Status CheckSegment(int64_t segment, const NetworkConfig& network);

// Reads and validates the file. Errors: NOT_FOUND, or INVALID_ARGUMENT naming file and key.
absl::StatusOr<TrainConfig> ReadTrainConfig(const std::string& path);

}  // namespace aft
