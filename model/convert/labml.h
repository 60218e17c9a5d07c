#ifndef AFT_MODEL_CONVERT_LABML_H_
#define AFT_MODEL_CONVERT_LABML_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/convert/import.h"

namespace aft {

struct LabmlOptions {
  // chars.json of the model's vocabulary (model/tokenizer/load_tokenizer.h); "" for a vocabulary of
  // 256 bytes, and for bare modules, which have none.
  std::string chars_path;
  // The state_dict does not say which; the experiment's is relu.
  Activation activation = Activation::kRelu;
  // Only for state_dicts without local_mask, from which it is read otherwise.
  std::optional<int64_t> window;
};

// From labml_nn (e6b3c8a6), either of:
//
//   transformers/aft `AFTLocal`: query, key, value, output, pos_bias [T, T], local_mask [T, T];
//     becomes an architecture "mixer"
//   the language model of transformers/aft/experiment.py: src_embed.*, encoder.layers.N.*,
//     encoder.norm.*, generator.projection.*. Positions are recognised as sinusoidal, or kept as
//     learned. At most T tokens
//
// Both are causal. INVALID_ARGUMENT names the tensor or option.
absl::StatusOr<Import> ImportLabml(const TensorMap& tensors, const LabmlOptions& options);

}  // namespace aft

#endif  // AFT_MODEL_CONVERT_LABML_H_
