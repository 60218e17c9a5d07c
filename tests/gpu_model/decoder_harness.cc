#include "tests/gpu_model/decoder_harness.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
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
  batch_.tokens = static_cast<int64_t>(all.tokens.size());
  batch_.ids = tokens_->get();
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
  network_ = *CpuNetwork::Create(config, tensors);
  states_ = *StatePool::Create(network_->state_specs(), slots);
  AFT_CHECK(network_->Allocate(kTestLimits.tokens, executor_).ok());
}

Logits CpuDecoder::Run(const DecoderStep& step) {
  const Flat flat(AllRows(step));
  CpuNetwork::Batch batch;
  batch.rows = {static_cast<int64_t>(flat.slots.size()), flat.slots.data(), flat.positions.data(),
                flat.offsets.data()};
  batch.tokens = flat.offsets.back();
  batch.ids = flat.tokens.data();
  batch.outputs = step.outputs.data();
  batch.output_count = static_cast<int64_t>(step.outputs.size());
  EXPECT_TRUE(ForwardStep(*network_, batch, states_.parts()).ok());
  Logits logits;
  for (int64_t i = 0; i < batch.output_count; ++i) {
    const float* const row = *network_->Logits(i, 1);
    logits.emplace_back(row, row + network_->config().vocab_size);
  }
  return logits;
}

GpuTestDecoder::GpuTestDecoder(const NetworkConfig& config, const TensorMap& tensors, Number format,
                               int32_t slots)
    : queue_(MakeTestQueue()) {
  absl::StatusOr<std::unique_ptr<GpuNetwork>> made =
      GpuNetwork::Create(config, tensors, format, kTestLimits, queue_.get());
  EXPECT_TRUE(made.ok()) << made.status();
  AFT_CHECK(made.ok());
  network_ = *std::move(made);
  states_ = *StatePool::Create(network_->state_specs(), slots, *queue_);
  const std::vector<float> nans(static_cast<size_t>(states_.bytes()) / sizeof(float), kNan);
  AFT_CHECK(queue_->Copy(states_.part(0).base, nans.data(), states_.bytes()).ok() &&
            queue_->Synchronize().ok());
}

absl::Status GpuTestDecoder::Forward(const GpuNetwork::Batch& batch) {
  return queue_->Run([&] { return ForwardStep(*network_, batch, states_.parts()); });
}

Logits GpuTestDecoder::Read(int64_t outputs, int64_t part) {
  Logits logits;
  const int64_t vocab = network_->config().vocab_size;
  for (int64_t first = 0; first < outputs; first += part) {
    const int64_t count = std::min(part, outputs - first);
    const float* rows = nullptr;
    const absl::Status status = queue_->Run([&]() -> absl::Status {
      AFT_ASSIGN_OR_RETURN(rows, network_->Logits(first, count));
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return {};
    std::vector<float> values(static_cast<size_t>(count * vocab));
    EXPECT_TRUE(queue_->Copy(values.data(), rows, count * vocab * int64_t{sizeof(float)}).ok());
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
