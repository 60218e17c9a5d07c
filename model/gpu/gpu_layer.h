#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/gpu/device_tensor.h"
#include "model/gpu/gpu_linear.h"
#include "model/gpu/gpu_mixer.h"
#include "model/gpu/gpu_token_shift.h"

namespace aft {

// The constants of a layer norm on the device.
struct GpuNorm {
  // Loads "<name>.weight" and "<name>.bias".
  static GpuNorm Load(const WeightMap& tensors, const std::string& name, at::Device device);
  int64_t weight_bytes() const { return DeviceBytes(weight) + DeviceBytes(bias); }

  at::Tensor weight;
  at::Tensor bias;
};

// INVALID_ARGUMENT: the norms' kernel does not compute vectors of d_model numbers.
absl::Status CheckNormWidth(const NetworkConfig& config);

// The format of a feed-forward's activations and of its second matrix. A squared ReLU may exceed
// fp16's largest number, 65,504, so with it bf16 takes fp16's place.
Number ActivatedNumber(const NetworkConfig& config, Number format);

// One layer of a GpuNetwork, on the device. A part that the network does not have is empty, and a
// bias undefined.
struct GpuLayer {
  // `tensors`, on the CPU, have those of layer `index`. Matrices are stored in `format`, and the
  // bias of a feed-forward that `activates_in_product` in ActivationFormat; `down` in
  // ActivatedNumber. Errors: those of MakeGpuMixer and GpuLinear::Create. REQUIRES: the tensors
  // passed CheckTensors.
  static absl::StatusOr<GpuLayer> Create(const NetworkConfig& config, int64_t index,
                                         const WeightMap& tensors, Number format,
                                         bool activates_in_product, at::Device device);

  // The mixer's state and, with token shift, those of its shift and of the feed-forward's.
  std::vector<StateSpec> state_specs(const NetworkConfig& config) const;

  GpuNorm norm1;
  GpuLinear qkv;                                // or
  std::optional<GpuShiftedProjection> shifted;  // with token shift
  std::unique_ptr<GpuMixer> mixer;
  GpuLinear out;
  at::Tensor out_bias;
  GpuNorm norm2;
  std::optional<GpuTokenShift> shift;  // of the feed-forward: ShiftsFeedForward
  GpuLinear up;
  at::Tensor up_bias;  // fp32; in the weights' format where the product adds it
  GpuLinear gate;      // FeedForwardKind::kGatedChannelMix
  GpuLinear down;
  at::Tensor down_bias;

  int64_t weight_bytes = 0;
};

}  // namespace aft
