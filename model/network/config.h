#ifndef AFT_MODEL_NETWORK_CONFIG_H_
#define AFT_MODEL_NETWORK_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft {

enum class MixerKind { kAftSimple, kAftLocal };

// The mixer of every layer: `"mixer": {...}` of config.json.
struct MixerConfig {
  MixerKind kind = MixerKind::kAftLocal;
  // Window s of AFT-local: bias w acts on the current token and the s - 1 before it. 0 equals
  // AFT-simple.
  int64_t window = 0;
  // Rows of `w.band`: 0 is one shift-invariant row, without length limit; else T rows, one per
  // position.
  int64_t band_rows = 0;
  // H > 0: staggered prefix restart. Time is cut into blocks of H tokens; token t sees only tokens
  // of its own block and of the one before, that is between H + 1 and 2H tokens, at constant cost.
  // 0: token t sees every token before it (the paper's form). REQUIRES: 0 or >= max(window, 1).
  int64_t prefix_block = 0;
};

// config.json of a checkpoint ("format_version": 1), validated.
struct NetworkConfig {
  int64_t vocab_size = 0;
  int64_t d_model = 0;
  int64_t n_layers = 0;
  int64_t d_ff = 0;
  float norm_eps = 1e-5F;
  bool tie_embeddings = false;  // head.weight is embed.weight
  int64_t max_seq_len = 0;      // 0: unlimited; else equals mixer.band_rows when that is set
  MixerConfig mixer;
  std::string tokenizer = "bytes";
};

// Parses and validates. INVALID_ARGUMENT names the key ("mixer.window") and what is allowed;
// unknown keys are refused.
absl::StatusOr<NetworkConfig> ParseNetworkConfig(absl::string_view json);

// The same as canonical JSON, two spaces, with a final newline. Parses back to an equal config.
std::string FormatNetworkConfig(const NetworkConfig& config);

const char* MixerKindName(MixerKind kind);  // "aft_simple", "aft_local"

// Number of weights of a network with this config.
int64_t CountParameters(const NetworkConfig& config);

}  // namespace aft

#endif  // AFT_MODEL_NETWORK_CONFIG_H_
