#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/convert/weight_files.h"

namespace aft {

// What became of a tensor of the source.
struct MappedTensor {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<int64_t> shape;
  std::string target;  // of the checkpoint, or in parentheses what it was good for
};

// A checkpoint in the native format, not written yet.
struct Import {
  NetworkConfig config;
  TensorMap tensors;                            // as the file is to hold them (stored_weights.h)
  std::map<std::string, std::string> files;     // a tokenizer's: name -> content
  std::map<std::string, std::string> metadata;  // of the weights file: where they come from
  std::vector<std::string> read;                // paths of the source's files
  std::vector<MappedTensor> mapped;             // all tensors of the source, names ascending
};

// What was read, mapped and left, as lines: the files, a table of tensors, their numbers.
std::string ImportText(const Import& import);

// Writes a checkpoint folder: all of it or nothing, under a temporary name beside `dir` that is
// renamed at the end. ALREADY_EXISTS when `dir` is there and not an empty folder;
// INVALID_ARGUMENT or DATA_LOSS when config, tensors and tokenizer make no checkpoint (names key,
// tensor or token); else the file system's.
absl::Status WriteImport(const std::string& dir, const Import& import);

// The checkpoint of `dir`, tokenizer included, with its matrices in `format`
// (model/checkpoint/stored_weights.h), to which there is a conversion: half or a quarter of the
// bytes. Errors: ReadCheckpoint's;
// INVALID_ARGUMENT or DATA_LOSS (CheckTensors).
absl::StatusOr<Import> Quantized(const std::string& dir, Number format);

// ---- From other packages. Tensors keep their format: fp32, bf16 or fp16. INVALID_ARGUMENT names
// the tensor, key or option.

// A module of the package aft-pytorch (rish-16/aft-pytorch, 9a89696; the AFT notebook has the same
// code), from its state_dict: to_q, to_k, to_v, project, wbias [T, T]. All are bidirectional:
//
//   no wbias          AFTSimple
//   wbias             AFTFull; at most T tokens
//   wbias and window  AFTLocal(s = window): the state_dict does not hold s, and outside of the band
//                     wbias is garbage that the module itself overwrites with 0
//
// The checkpoint's architecture is "mixer".
absl::StatusOr<Import> ImportAftPytorch(WeightFiles files, std::optional<int64_t> window);

struct LabmlOptions {
  // chars.json of the model's vocabulary (model/tokenizer/tokenizers.h); "" for a vocabulary of
  // 256 bytes, and for bare modules, which have none.
  std::string chars_path = {};
  // The state_dict does not say which; the experiment's is relu.
  Activation activation = Activation::kRelu;
  // Only for state_dicts without local_mask, from which it is read otherwise.
  std::optional<int64_t> window = {};
  // A bare module is called with a mask that hides nothing. Refused for the language model.
  bool bidirectional = false;
};

// From labml_nn (e6b3c8a6), either of:
//
//   transformers/aft `AFTLocal`: query, key, value, output, pos_bias [T, T], local_mask [T, T];
//     becomes an architecture "mixer"
//   the language model of transformers/aft/experiment.py: src_embed.*, encoder.layers.N.*,
//     encoder.norm.*, generator.projection.*. Positions are recognised as sinusoidal, or kept as
//     learned. At most T tokens
//
// Both are causal, unless the options say that a module is called without a causal mask.
absl::StatusOr<Import> ImportLabml(WeightFiles files, const LabmlOptions& options);

// A bare mixer from its config alone: `config_path` is a config.json of the architecture "mixer".
// `files` may hold any of its tensors, by their names below "layers.0.mixer." ("w.full"). A
// projection that is not among them is the identity, and a bias of one is 0, so that the three
// tensors query, key and value are q, k and v themselves. Where a part of the packed input is not
// as wide as the vectors there is no identity: INVALID_ARGUMENT names "qkv.weight". Other tensors
// must be there.
absl::StatusOr<Import> ImportMixer(const std::string& config_path, WeightFiles files);

// The attention that serves a hub model's weights: its own, or LSG's block-local (ccdv-ai
// lsg_converter c56734b, BlockLocalSelfAttention), which has no weights of its own either.
struct AttentionOptions {
  bool block_local = false;
  // For block-local; see MixerConfig.
  int64_t block_size = 128;
  bool global_token = true;
  bool full_decode = false;  // of decoders
};

// A Hugging Face GPT-2 folder: config.json, weights (WeightFiles::OpenFolder; names with or without
// "transformer."; linear weights are [in, out] there), and its tokenizer: tokenizer.json, else
// vocab.json and merges.txt, else none (bytes). A text ends with config.json's eos_token_id if the
// tokenizer.json has it, else with tokenizer_config.json's eos_token (LoadTokenizerJson). Errors
// start with the file and name the key or tensor: NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS,
// RESOURCE_EXHAUSTED.
absl::StatusOr<Import> ImportGpt2(const std::string& dir, const AttentionOptions& options);

// A Hugging Face folder of RoBERTa or BERT (config.json's model_type), as ImportGpt2 takes it: an
// encoder without a head, post-norm. Its vectors are last_hidden_state of token ids all of type 0,
// without padding on the left. The pooler and the head of masked tokens are left. Of RoBERTa the
// byte-level BPE, whose texts begin and end with its own tokens; a BERT has no tokenizer here,
// since WordPiece is not supported: it takes ids.
absl::StatusOr<Import> ImportBert(const std::string& dir, const AttentionOptions& options);

}  // namespace aft
