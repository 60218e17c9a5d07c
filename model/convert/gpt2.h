#ifndef AFT_MODEL_CONVERT_GPT2_H_
#define AFT_MODEL_CONVERT_GPT2_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "model/convert/import.h"

namespace aft {

// The attention that serves the model's weights: GPT-2's own, or LSG's block-local (ccdv-ai
// lsg_converter c56734b, BlockLocalSelfAttention), which has no weights of its own either.
struct Gpt2Options {
  bool block_local = false;
  // For block-local; see MixerConfig.
  int64_t block_size = 128;
  bool global_token = true;
  bool full_decode = false;
};

// A Hugging Face GPT-2 folder: config.json, model.safetensors (names with or without
// "transformer."; linear weights are [in, out] there), vocab.json and merges.txt if it has them.
// Errors start with the file and name the key or tensor: NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS.
absl::StatusOr<Import> ImportGpt2(const std::string& dir, const Gpt2Options& options);

}  // namespace aft

#endif  // AFT_MODEL_CONVERT_GPT2_H_
