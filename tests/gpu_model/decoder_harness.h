#ifndef AFT_TESTS_GPU_MODEL_DECODER_HARNESS_H_
#define AFT_TESTS_GPU_MODEL_DECODER_HARNESS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/gpu/gpu_network.h"
#include "model/network/cpu_network.h"
#include "tests/cuda/device_array.h"
#include "tests/gpu_model/print_case.h"
#include "tests/gpu_model/test_queue.h"
#include "tests/property/network_reference.h"
#include "tests/support/serial_executor.h"

namespace aft {

// Tokens of one sequence that enter a step.
struct DecoderRow {
  int32_t slot = 0;
  int64_t position = 0;
  std::vector<int32_t> tokens;
};

// One step: first single tokens, then prompt chunks; and the tokens whose logits are wanted,
// counted through all rows, ascending.
struct DecoderStep {
  std::vector<DecoderRow> decode;
  std::vector<DecoderRow> chunks;
  std::vector<int64_t> outputs;
};

// Logits of a step's outputs, one row each.
using Logits = std::vector<std::vector<float>>;

// The step's arrays on the device.
class DeviceStep {
 public:
  // `last_sampled` [slots], for tokens that are kLastSampledToken. `ages` of the single tokens:
  // StepRows::age, or empty.
  explicit DeviceStep(const DecoderStep& step, const std::vector<int32_t>& last_sampled = {},
                      const std::vector<int32_t>& ages = {});

  GpuNetwork::Batch batch() const { return batch_; }
  // Other tokens, slots and positions in the same places. REQUIRES: the same shape.
  void Set(const DecoderStep& step);

 private:
  std::unique_ptr<DeviceArray<int32_t>> tokens_;
  std::unique_ptr<DeviceArray<int32_t>> token_slots_;
  std::unique_ptr<DeviceArray<int64_t>> token_positions_;
  std::unique_ptr<DeviceArray<int32_t>> last_sampled_;
  std::unique_ptr<DeviceArray<int32_t>> ages_;
  std::unique_ptr<DeviceArray<int32_t>> chunk_slots_;
  std::unique_ptr<DeviceArray<int64_t>> chunk_positions_;
  std::unique_ptr<DeviceArray<int64_t>> chunk_offsets_;
  std::unique_ptr<DeviceArray<int64_t>> outputs_;
  GpuNetwork::Batch batch_;
};

// A language model on the CPU and one on the GPU with the same weights, and slots of their own.
class CpuDecoder {
 public:
  CpuDecoder(const NetworkConfig& config, const TensorMap& tensors, int32_t slots);
  Logits Run(const DecoderStep& step);
  const CpuNetwork& network() const { return *network_; }

 private:
  const SerialExecutor executor_;
  std::unique_ptr<CpuNetwork> network_;
  StatePool states_;
};

class GpuTestDecoder {
 public:
  GpuTestDecoder(const NetworkConfig& config, const TensorMap& tensors, Number format,
                 int32_t slots);

  // `last_sampled` stands in for what a sampler would have left in the slots.
  Logits Run(const DecoderStep& step, const std::vector<int32_t>& last_sampled = {},
             const std::vector<int32_t>& ages = {});
  // The parts of Run. Read takes the outputs `part` at a time.
  absl::Status Forward(const GpuNetwork::Batch& batch);
  Logits Read(int64_t outputs, int64_t part = 1);

  GpuNetwork& network() { return *network_; }
  GpuQueue& queue() { return *queue_; }

 private:
  const std::unique_ptr<GpuQueue> queue_;
  std::unique_ptr<GpuNetwork> network_;
  StatePool states_;  // NaN at first
};

inline constexpr GpuLimits kTestLimits = {4, kCaseTokens};

}  // namespace aft

#endif  // AFT_TESTS_GPU_MODEL_DECODER_HARNESS_H_
