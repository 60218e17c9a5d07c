#include "tests/gpu_model/decoder_harness.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "gtest/gtest.h"

namespace aft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A step's rows as one.
std::vector<DecoderRow> AllRows(const DecoderStep& step) {
  std::vector<DecoderRow> rows = step.decode;
  rows.insert(rows.end(), step.chunks.begin(), step.chunks.end());
  return rows;
}

struct Flat {
  explicit Flat(const std::vector<DecoderRow>& rows) {
    for (const DecoderRow& row : rows) {
      slots.push_back(row.slot);
      positions.push_back(row.position);
      for (size_t i = 0; i < row.tokens.size(); ++i) {
        tokens.push_back(row.tokens[i]);
        token_slots.push_back(row.slot);
        token_positions.push_back(row.position + static_cast<int64_t>(i));
      }
      longest = std::max(longest, static_cast<int64_t>(row.tokens.size()));
      offsets.push_back(static_cast<int64_t>(tokens.size()));
    }
  }

  std::vector<int32_t> slots;
  std::vector<int64_t> positions;
  std::vector<int64_t> offsets = {0};
  int64_t longest = 0;
  std::vector<int32_t> tokens;
  std::vector<int32_t> token_slots;
  std::vector<int64_t> token_positions;
};

template <typename T>
std::unique_ptr<DeviceArray<T>> OnDevice(const std::vector<T>& values) {
  return std::make_unique<DeviceArray<T>>(values);
}

// Copies to a GPU go through the default stream, for which a queue's own does not wait.
void WaitForCopies() { AFT_CHECK(cudaDeviceSynchronize() == cudaSuccess); }

}  // namespace

DeviceStep::DeviceStep(const DecoderStep& step, const std::vector<int32_t>& last_sampled,
                       const std::vector<int32_t>& ages) {
  const Flat all(AllRows(step));
  const Flat chunks(step.chunks);
  tokens_ = OnDevice(all.tokens);
  token_slots_ = OnDevice(all.token_slots);
  token_positions_ = OnDevice(all.token_positions);
  last_sampled_ = OnDevice(last_sampled);
  ages_ = OnDevice(ages);
  chunk_slots_ = OnDevice(chunks.slots);
  chunk_positions_ = OnDevice(chunks.positions);
  chunk_offsets_ = OnDevice(chunks.offsets);
  outputs_ = OnDevice(step.outputs);
  // A decode row is one token.
  batch_.decode = {static_cast<int64_t>(step.decode.size()), token_slots_->get(),
                   token_positions_->get(), nullptr, ages.empty() ? nullptr : ages_->get()};
  batch_.chunks = {static_cast<int64_t>(step.chunks.size()),
                   chunk_slots_->get(),
                   chunk_positions_->get(),
                   chunk_offsets_->get(),
                   nullptr,
                   chunks.offsets.back(),
                   chunks.longest};
  batch_.tokens = tokens_->get();
  batch_.token_slots = token_slots_->get();
  batch_.token_positions = token_positions_->get();
  batch_.last_sampled = last_sampled_->get();
  batch_.outputs = outputs_->get();
  batch_.output_count = static_cast<int64_t>(step.outputs.size());
  WaitForCopies();
}

void DeviceStep::Set(const DecoderStep& step) {
  const Flat all(AllRows(step));
  const Flat chunks(step.chunks);
  tokens_->Set(all.tokens);
  token_slots_->Set(all.token_slots);
  token_positions_->Set(all.token_positions);
  chunk_slots_->Set(chunks.slots);
  chunk_positions_->Set(chunks.positions);
  chunk_offsets_->Set(chunks.offsets);
  outputs_->Set(step.outputs);
  WaitForCopies();
}

CpuDecoder::CpuDecoder(const NetworkConfig& config, const TensorMap& tensors, int32_t slots) {
  decoder_ = *Decoder::Create(config, tensors);
  states_ = *StatePool::Create(decoder_->state_specs(), slots);
  workspace_ =
      *Activations::Create(config, kTestLimits.tokens, decoder_->scratch_floats(), executor_);
}

Logits CpuDecoder::Run(const DecoderStep& step) {
  const Flat flat(AllRows(step));
  DecoderBatch batch;
  batch.rows = {static_cast<int64_t>(flat.slots.size()), flat.slots.data(), flat.positions.data(),
                flat.offsets.data()};
  batch.tokens = flat.tokens.data();
  batch.outputs = step.outputs.data();
  batch.output_count = static_cast<int64_t>(step.outputs.size());
  decoder_->Forward(batch, states_, workspace_);
  Logits logits;
  for (int64_t i = 0; i < batch.output_count; ++i) {
    logits.emplace_back(static_cast<size_t>(decoder_->config().vocab_size));
    decoder_->Logits(workspace_, i, 1, logits.back().data());
  }
  return logits;
}

GpuTestDecoder::GpuTestDecoder(const NetworkConfig& config, const TensorMap& tensors, Number format,
                               int32_t slots)
    : slots_(slots), queue_(MakeTestQueue()) {
  absl::StatusOr<std::unique_ptr<GpuDecoder>> made =
      GpuDecoder::Create(config, tensors, format, kTestLimits, queue_.get());
  EXPECT_TRUE(made.ok()) << made.status();
  AFT_CHECK(made.ok());
  decoder_ = *std::move(made);
  std::vector<int64_t> offsets;
  int64_t slot_floats = 0;
  for (const StateSpec& layer : decoder_->state_specs()) {
    offsets.push_back(slot_floats);
    slot_floats += RoundUpToLine(layer.floats);
  }
  states_ = std::make_unique<DeviceArray<float>>(
      std::vector<float>(static_cast<size_t>(slots * slot_floats), kNan));
  for (const int64_t offset : offsets) {
    layers_.push_back({states_->get() + offset, slot_floats});
  }
  lookahead_ = std::make_unique<DeviceArray<float>>(
      offsets.size() * static_cast<size_t>(slots * decoder_->lookahead_floats()));
  WaitForCopies();
}

absl::Status GpuTestDecoder::Forward(const GpuDecoderBatch& batch) {
  return decoder_->Forward(batch, layers_, batch.decode.age ? lookahead_->get() : nullptr, slots_);
}

Logits GpuTestDecoder::Read(int64_t outputs, int64_t part) {
  Logits logits;
  const int64_t vocab = decoder_->config().vocab_size;
  for (int64_t first = 0; first < outputs; first += part) {
    const int64_t count = std::min(part, outputs - first);
    const absl::StatusOr<const float*> rows = decoder_->Logits(first, count);
    EXPECT_TRUE(rows.ok()) << rows.status();
    if (!rows.ok()) return {};
    std::vector<float> values(static_cast<size_t>(count * vocab));
    EXPECT_TRUE(queue_->Copy(values.data(), *rows, count * vocab * int64_t{sizeof(float)}).ok());
    EXPECT_TRUE(queue_->Synchronize().ok());
    for (int64_t i = 0; i < count; ++i) {
      logits.emplace_back(values.begin() + i * vocab, values.begin() + (i + 1) * vocab);
    }
  }
  return logits;
}

Logits GpuTestDecoder::Run(const DecoderStep& step, const std::vector<int32_t>& last_sampled,
                           const std::vector<int32_t>& ages) {
  const DeviceStep arrays(step, last_sampled, ages);
  const absl::Status status = Forward(arrays.batch());
  EXPECT_TRUE(status.ok()) << status;
  return status.ok() ? Read(arrays.batch().output_count) : Logits();
}

}  // namespace aft
