#include "model/network/activations.h"

#include <algorithm>

#include "base/status_macros.h"
#include "model/config/tensors.h"

namespace aft {
namespace {

int64_t MixedWidth(const NetworkConfig& config) {
  return std::max(config.d_model, MixerWidth(config));
}

int64_t WideWidth(const NetworkConfig& config) {
  return std::max(PackedWidth(config.mixer, MixerWidth(config)), config.d_ff);
}

}  // namespace

int64_t Activations::Floats(const NetworkConfig& config, int64_t max_tokens, int64_t scratch_floats,
                            int threads) {
  return RoundUpToLine(max_tokens * config.d_model) +
         RoundUpToLine(max_tokens * MixedWidth(config)) +
         RoundUpToLine(max_tokens * WideWidth(config)) + threads * RoundUpToLine(scratch_floats);
}

absl::StatusOr<Activations> Activations::Create(const NetworkConfig& config, int64_t max_tokens,
                                                int64_t scratch_floats, const Executor& executor) {
  Activations activations;
  AFT_ASSIGN_OR_RETURN(
      activations.buffer,
      AlignedBuffer::Create(Floats(config, max_tokens, scratch_floats, executor.threads()),
                            "activations"));
  activations.x = activations.buffer.data();
  activations.mixed = activations.x + RoundUpToLine(max_tokens * config.d_model);
  activations.wide = activations.mixed + RoundUpToLine(max_tokens * MixedWidth(config));
  activations.shared = {&executor, activations.wide + RoundUpToLine(max_tokens * WideWidth(config)),
                        RoundUpToLine(scratch_floats)};
  return activations;
}

}  // namespace aft
