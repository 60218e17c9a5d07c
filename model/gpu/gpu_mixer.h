#pragma once

#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/kernels/cuda/types.h"
#include "model/mixers/mixer.h"

namespace aft {

// The largest batch that a network is made for.
struct GpuLimits {
  int64_t rows = 0;    // chunks of a step, with padding, or texts of an Encode
  int64_t tokens = 0;  // of all rows, with padding
  int64_t slots = 0;   // of a language model; a step has at most this number of rows of one token
};

// The core of one layer on a GPU. It corresponds to Mixer (model/mixers/mixer.h) and has the same
// state, byte for byte. Calls queue work and return. Immutable and thread-safe; concurrent calls
// need different slots and workspaces. Errors: INTERNAL names the operator and CUDA's error.
class GpuMixer {
 public:
  virtual ~GpuMixer() = default;

  virtual StateSpec state_spec() const = 0;

  virtual int64_t weight_bytes() const = 0;  // of the tables on the device

  // The most floats that one call within the limits uses.
  virtual int64_t workspace_floats(const GpuLimits& limits) const = 0;

  // Scratch that a mixer may keep for a slot in addition to its state, and can make again from the
  // state: floats per slot, and the number of tokens that it serves once it is made
  // (StepRows::age). Both are 0 for a mixer without scratch.
  virtual int64_t slot_scratch_floats() const { return 0; }
  virtual int64_t lookahead_rows() const { return 0; }

  // The most columns of an image, for mixers of images (kernels::cuda::Texts::grid_width).
  virtual int64_t max_grid_width() const { return 0; }

  // One token of each row. `slot_scratch` is [slots, slot_scratch_floats()], or null to do without.
  virtual absl::Status Step(const kernels::cuda::StepRows& rows, kernels::cuda::In packed,
                            kernels::cuda::State state, float* slot_scratch, kernels::cuda::Out out,
                            float* workspace, kernels::cuda::Stream stream) const = 0;

  // Prompt chunks.
  virtual absl::Status Prefill(const kernels::cuda::ChunkRows& chunks, kernels::cuda::In packed,
                               kernels::cuda::State state, kernels::cuda::Out out, float* workspace,
                               kernels::cuda::Stream stream) const = 0;

  // Whole texts, without state.
  virtual absl::Status Encode(const kernels::cuda::Texts& texts, kernels::cuda::In packed,
                              kernels::cuda::Out out, float* workspace,
                              kernels::cuda::Stream stream) const = 0;
};

// Does what MakeMixer does, on a GPU: the tables are copied to `device`. `tables` are on the CPU.
// Throws LibTorch's exceptions (GpuQueue::Run catches them) when the device has no memory.
// REQUIRES: `device` is current, as within GpuQueue::Run.
absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuMixer(const MixerConfig& config, int64_t hid,
                                                       const MixerTables& tables,
                                                       const MixerOptions& options,
                                                       at::Device device);

// The GPU mixer of each kernel family, for MakeGpuMixer, which has checked the tables.

absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuAftMixer(const MixerConfig& config, int64_t hid,
                                                          const MixerTables& tables,
                                                          at::Device device);

// DATA_LOSS: as FoldConvFilter.
absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuConvMixer(const MixerConfig& config, int64_t hid,
                                                           const MixerTables& tables,
                                                           at::Device device);

// INVALID_ARGUMENT: as FoldAttentionTables.
absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuAttentionMixer(const MixerConfig& config,
                                                                int64_t hid,
                                                                const MixerTables& tables,
                                                                const MixerOptions& options,
                                                                at::Device device);

absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuWkvMixer(const MixerConfig& config, int64_t hid,
                                                          const MixerTables& tables,
                                                          at::Device device);

}  // namespace aft
