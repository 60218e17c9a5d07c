#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/progress.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/convert/weight_files.h"

namespace aft {

// A tensor of the source, and what it became.
struct MappedTensor {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<int64_t> shape;
  std::string target;  // a tensor of the checkpoint, or in parentheses what the tensor was used for
};

// A checkpoint in the native format, not written yet.
struct Import {
  NetworkConfig config;
  DeferredTensors tensors;                      // in the form of the file (stored_weights.h)
  std::map<std::string, std::string> files;     // of a tokenizer: name -> content
  std::map<std::string, std::string> metadata;  // of the weights file: the origin of the weights
  std::vector<std::string> read;                // paths of the source's files
  std::vector<MappedTensor> mapped;             // all tensors of the source, names ascending
};

// A text that shows what was read, mapped and left: the files, a table of tensors, and totals.
// Empty when nothing was mapped.
std::string ImportText(const Import& import);

// Writes a checkpoint folder, either completely or not at all. It reads and makes one tensor at a
// time, and reads the result back in the same way. It writes a folder with a temporary
// name next to `dir` and renames it at the end. Removes such folders of killed runs
// (RemoveAbandoned). ALREADY_EXISTS when `dir` exists and is not an empty folder; INVALID_ARGUMENT
// or DATA_LOSS when config, tensors and tokenizer do not make a checkpoint (the message names the
// key, tensor or token); the errors of the tensors' files; otherwise errors of the file system.
// `progress` gets how much has been written and read back. It may be null.
absl::Status WriteImport(const std::string& dir, const Import& import,
                         Progress* progress = nullptr);

// The checkpoint of `dir`, tokenizer and tuned states included, with its matrices in `format`
// (model/checkpoint/stored_weights.h): half or a quarter of the bytes. Errors: those of
// ReadCheckpoint; INVALID_ARGUMENT (CheckFormat) or DATA_LOSS (CheckTensors). REQUIRES: `format`
// has FormatSpec::is_converted_to. `progress` gets how much has been checked. It may be null.
absl::StatusOr<Import> Quantized(const std::string& dir, Number format,
                                 Progress* progress = nullptr);

// ---- From other packages. Tensors keep their format: fp32, bf16 or fp16. INVALID_ARGUMENT names
// the tensor, key or option. A tensor's values are read and checked when it is written.

// A module of the package aft-pytorch (rish-16/aft-pytorch, 9a89696; the AFT notebook has the same
// code), from its state_dict: to_q, to_k, to_v, project, wbias [T, T]. All are bidirectional:
//
//   no wbias          AFTSimple
//   wbias             AFTFull; at most T tokens
//   wbias and window  AFTLocal(s = window). The state_dict does not have s. Outside the band, wbias
//                     has arbitrary values, which the module itself overwrites with 0
//
// The checkpoint's architecture is "mixer".
absl::StatusOr<Import> ImportAftPytorch(WeightFiles files, std::optional<int64_t> window);

struct LabmlOptions {
  // The path of chars.json of the model's vocabulary (model/tokenizer/tokenizers.h); "" for a
  // vocabulary of 256 bytes, and for bare modules, which have no vocabulary.
  std::string chars_path = {};
  // The activation, which the state_dict does not have. The experiment uses relu.
  Activation activation = Activation::kRelu;
  // Needed for state_dicts without local_mask; otherwise the window is read from local_mask.
  std::optional<int64_t> window = {};
  // The bare module is called with a mask that hides nothing. Refused for the language model.
  bool bidirectional = false;
};

// From labml_nn (e6b3c8a6), one of these:
//
//   transformers/aft `AFTLocal`: query, key, value, output, pos_bias [T, T], local_mask [T, T];
//     it becomes a checkpoint of the architecture "mixer"
//   the language model of transformers/aft/experiment.py: src_embed.*, encoder.layers.N.*,
//     encoder.norm.*, generator.projection.*. Positions are recognised as sinusoidal, or kept as
//     learned. At most T tokens
//
// Both are causal, unless the options say that a module is called without a causal mask.
absl::StatusOr<Import> ImportLabml(WeightFiles files, const LabmlOptions& options);

// A bare mixer from its config: `config_path` is a config.json of the architecture "mixer". `files`
// may have any of its tensors, named without "layers.0.mixer." ("w.full"). A projection that is not
// in `files` is the identity, and its bias is 0, so that the vectors query, key and value are q, k
// and v themselves. The identity is not possible when a part of the packed input is not as wide as
// the vectors: INVALID_ARGUMENT then names "qkv.weight". All other tensors must be in `files`.
absl::StatusOr<Import> ImportMixer(const std::string& config_path, WeightFiles files);

// The attention that a hub model gets: its own one, or LSG's block-local (ccdv-ai lsg_converter
// c56734b, BlockLocalSelfAttention), which needs no additional weights.
struct AttentionOptions {
  bool block_local = false;
  // For block-local; see MixerConfig.
  int64_t block_size = 128;
  bool global_token = true;
  bool full_decode = false;  // decoders only
};

// A Hugging Face GPT-2 folder: config.json, weights (WeightFiles::OpenFolder; names with or without
// "transformer."; linear weights are [in, out] there), and its tokenizer: tokenizer.json, otherwise
// vocab.json and merges.txt, otherwise no files (bytes). A text ends with the eos_token_id of
// generation_config.json, otherwise with that of config.json, if the vocabulary has that token,
// which must not be an ordinary one, and otherwise with tokenizer_config.json's eos_token
// (ReadEndOfText). If generation_config.json lists several ids and config.json's is among them,
// only that one ends a text. `keys` are those of the weights (WeightFiles::OpenFolder). Errors
// start with the file and name the key or tensor: NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS,
// RESOURCE_EXHAUSTED.
absl::StatusOr<Import> ImportGpt2(const std::string& dir, const AttentionOptions& options,
                                  const std::vector<std::string>& keys = {});

// A Hugging Face folder of RoBERTa or BERT (config.json's model_type), with the files, keys and
// errors of ImportGpt2. It becomes an encoder without a head, post-norm. Its vectors are
// last_hidden_state for token ids that all have type 0, without padding on the left. The pooler and
// the head of masked tokens are left out. The norms may have gamma and beta, as in
// bert-base-uncased, instead of weight and bias. RoBERTa gets its byte-level BPE, with RoBERTa's
// own tokens before and after each text. BERT gets no tokenizer, because WordPiece is not
// supported: it takes ids.
absl::StatusOr<Import> ImportBert(const std::string& dir, const AttentionOptions& options,
                                  const std::vector<std::string>& keys = {});

struct RwkvOptions {
  // "world", "bytes", or a folder with a byte-level BPE (UseHubTokenizer). Empty: the
  // tokenizer.json of the hub's folder; without one, world for a vocabulary of 65,536, bytes for
  // 256, and for other sizes that folder's vocab.json and merges.txt.
  std::string tokenizer = {};
  std::vector<std::string> keys = {};  // of a file of torch.save (ReadStateDict)
};

// RWKV-4 or RWKV-7. `path` is a file with the names of BlinkDL's checkpoints (blocks.N.att.*) or of
// one of the other two packages, or a folder of the hub: transformers' RwkvForCausalLM
// (rwkv.blocks.N.attention.*, RWKV-4) or flash-linear-attention's RWKV7ForCausalLM
// (model.layers.N.attn.*). The names say which version and package it is. Versions 5 and 6 and
// networks with DeepEmbed are refused. If there are states (blocks.N.att.time_state) among the
// weights of an RWKV-7, every text begins from them. Matrices keep their format; tables become
// fp32. Errors are those of ImportGpt2.
absl::StatusOr<Import> ImportRwkv(const std::string& path, const RwkvOptions& options);

// Adds the tuned state `name` to the checkpoint of an RWKV-7 in `dir`, where requests can begin a
// text from it. `path`: a file with blocks.N.att.time_state of every layer, and nothing else;
// `keys` as in RwkvOptions. Returns the path of the file that was written. ALREADY_EXISTS if the
// checkpoint has a state of that name; otherwise errors as ImportGpt2.
absl::StatusOr<std::string> AddRwkvState(const std::string& path,
                                         const std::vector<std::string>& keys,
                                         const std::string& dir, const std::string& name);

}  // namespace aft
