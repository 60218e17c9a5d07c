#include "model/network/activations.h"

#include <algorithm>
#include <array>

#include "base/status_macros.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"
#include "model/layers/shifted_projection.h"

namespace aft {
namespace {

int64_t MixedWidth(const NetworkConfig& config) {
  return std::max(config.d_model, MixerWidth(config));
}

int64_t WideWidth(const NetworkConfig& config) {
  return std::max(PackedWidth(config.mixer, MixerWidth(config)), config.d_ff);
}

// Returns the floats for each token in the buffers of the token shifts, in the order of
// ShiftBuffers.
std::array<int64_t, 4> ShiftWidths(const NetworkConfig& config) {
  const KindSpec& kind = SpecOf(config.mixer.kind);
  if (!kind.token_shift) return {};
  const int64_t hid = MixerWidth(config);
  const auto parts = static_cast<int64_t>(kind.packed(config.mixer, hid).size());
  return {config.d_model, parts * config.d_model, ShiftedProjection::LargestRank(config), hid};
}

}  // namespace

int64_t Activations::Floats(const NetworkConfig& config, int64_t max_tokens, int64_t scratch_floats,
                            int threads) {
  int64_t floats =
      RoundUpToLine(max_tokens * config.d_model) + RoundUpToLine(max_tokens * MixedWidth(config)) +
      RoundUpToLine(max_tokens * WideWidth(config)) + threads * RoundUpToLine(scratch_floats);
  for (const int64_t width : ShiftWidths(config)) floats += RoundUpToLine(max_tokens * width);
  return floats;
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
  float* next = activations.wide + RoundUpToLine(max_tokens * WideWidth(config));
  activations.shared = {&executor, next, RoundUpToLine(scratch_floats)};
  next += executor.threads() * RoundUpToLine(scratch_floats);
  ShiftBuffers& shift = activations.shift;
  float** const buffers[] = {&shift.previous, &shift.inputs, &shift.narrow, &shift.first_values};
  const auto widths = ShiftWidths(config);
  for (size_t i = 0; i < widths.size(); ++i) {
    if (widths[i] == 0) continue;
    *buffers[i] = next;
    next += RoundUpToLine(max_tokens * widths[i]);
  }
  return activations;
}

}  // namespace aft
