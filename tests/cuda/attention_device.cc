#include "tests/cuda/attention_device.h"

#include <algorithm>

#include "base/check.h"
#include "gtest/gtest.h"

namespace aft {
namespace {

void ExpectOk(int error) {
  EXPECT_EQ(error, 0) << cudaGetErrorString(static_cast<cudaError_t>(error));
}

// A gap after each row of y: 16 bytes where rows are whole multiples of that.
int64_t OutStride(int64_t hid) { return hid % 8 == 0 ? hid + 8 : hid + 3; }

}  // namespace

// The device's copy of a batch, and its y.
struct DeviceAttention::Batch {
  Batch(const DeviceAttention& device, const std::vector<std::vector<float>>& parts)
      : width(device.layer_.packed_width()),
        hid(device.layer_.params.hid()),
        offsets(Offsets(parts, width)),
        packed(EncodeNumbers(Joined(parts), device.in_)),
        offset(offsets),
        y(static_cast<size_t>(tokens() * OutStride(hid) * NumberBytes(device.out_))) {
    for (size_t i = 1; i < offsets.size(); ++i) {
      longest = std::max(longest, offsets[i] - offsets[i - 1]);
    }
  }

  static std::vector<int64_t> Offsets(const std::vector<std::vector<float>>& parts, int64_t width) {
    std::vector<int64_t> offsets = {0};
    for (const std::vector<float>& part : parts) {
      offsets.push_back(offsets.back() + static_cast<int64_t>(part.size()) / width);
    }
    return offsets;
  }
  static std::vector<float> Joined(const std::vector<std::vector<float>>& parts) {
    std::vector<float> all;
    for (const std::vector<float>& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  }

  int64_t tokens() const { return offsets.back(); }
  kernels::cuda::In in(Number type) const { return {packed.get(), type, width}; }
  kernels::cuda::Out out(Number type) const { return {y.get(), type, OutStride(hid)}; }

  int64_t width;
  int64_t hid;
  std::vector<int64_t> offsets;
  int64_t longest = 0;
  DeviceArray<unsigned char> packed;
  DeviceArray<int64_t> offset;
  DeviceArray<unsigned char> y;
};

namespace {

// The chunks' columns.
struct DeviceChunks {
  explicit DeviceChunks(const std::vector<AttentionChunk>& chunks)
      : slot(Slots(chunks)), position(Positions(chunks)), generated(Generated(chunks)) {}

  static std::vector<int32_t> Slots(const std::vector<AttentionChunk>& chunks) {
    std::vector<int32_t> slots;
    for (const AttentionChunk& chunk : chunks) slots.push_back(chunk.slot);
    return slots;
  }
  static std::vector<int64_t> Positions(const std::vector<AttentionChunk>& chunks) {
    std::vector<int64_t> positions;
    for (const AttentionChunk& chunk : chunks) positions.push_back(chunk.position);
    return positions;
  }
  static std::vector<uint8_t> Generated(const std::vector<AttentionChunk>& chunks) {
    std::vector<uint8_t> generated;
    for (const AttentionChunk& chunk : chunks) generated.push_back(chunk.generated ? 1 : 0);
    return generated;
  }

  DeviceArray<int32_t> slot;
  DeviceArray<int64_t> position;
  DeviceArray<uint8_t> generated;
};

std::vector<std::vector<float>> Inputs(const std::vector<AttentionChunk>& chunks) {
  std::vector<std::vector<float>> parts;
  for (const AttentionChunk& chunk : chunks) parts.push_back(chunk.packed);
  return parts;
}

std::vector<float> PositionKeys(const AttentionLayer& layer) {
  const kernels::AttentionParams& p = layer.params;
  if (p.stores_keys()) return {};
  return {p.position_keys,
          p.position_keys + kernels::RoundUpToKeyBlock(p.position_rows) * p.score_width};
}

}  // namespace

DeviceAttention::DeviceAttention(const AttentionLayer& layer, int64_t slots, Number in, Number out)
    : layer_(layer),
      in_(in),
      out_(out),
      score_weight_(layer.score_weight),
      position_keys_(PositionKeys(layer)),
      states_(static_cast<size_t>(slots * layer.slot_floats())) {}

kernels::AttentionParams DeviceAttention::DeviceParams() const {
  kernels::AttentionParams params = layer_.params;
  if (params.score_weight != nullptr) params.score_weight = score_weight_.get();
  if (params.position_keys != nullptr) params.position_keys = position_keys_.get();
  return params;
}

std::vector<std::vector<float>> DeviceAttention::Outputs(const Batch& batch) const {
  const std::vector<unsigned char> bytes = batch.y.Get();
  const int64_t number = NumberBytes(out_);
  const int64_t stride = OutStride(batch.hid);
  std::vector<std::vector<float>> outputs;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    outputs.emplace_back();
    for (int64_t t = batch.offsets[i]; t < batch.offsets[i + 1]; ++t) {
      const auto row = bytes.begin() + t * stride * number;
      const auto end = row + batch.hid * number;
      const std::vector<float> values = DecodeNumbers({row, end}, out_);
      outputs.back().insert(outputs.back().end(), values.begin(), values.end());
      const bool untouched =
          std::all_of(end, row + stride * number, [](unsigned char byte) { return byte == 0xFF; });
      EXPECT_TRUE(untouched) << "written beyond a row of y";
    }
  }
  return outputs;
}

std::vector<std::vector<float>> DeviceAttention::Step(const std::vector<AttentionChunk>& chunks) {
  const Batch batch(*this, Inputs(chunks));
  AFT_CHECK(batch.tokens() == static_cast<int64_t>(chunks.size()) && batch.longest == 1);
  const DeviceChunks columns(chunks);
  kernels::cuda::StepRows rows;
  rows.rows = batch.tokens();
  rows.slot = columns.slot.get();
  rows.position = columns.position.get();
  rows.generated = columns.generated.get();
  const kernels::AttentionParams params = DeviceParams();
  const DeviceArray<float> workspace(
      static_cast<size_t>(kernels::cuda::AttentionStepWorkspaceFloats(params, rows.rows)));
  ExpectOk(kernels::cuda::AttentionStep(params, rows, batch.in(in_), state(), batch.out(out_),
                                        workspace.get(), nullptr));
  return Outputs(batch);
}

std::vector<std::vector<float>> DeviceAttention::Prefill(
    const std::vector<AttentionChunk>& chunks) {
  const Batch batch(*this, Inputs(chunks));
  const DeviceChunks columns(chunks);
  kernels::cuda::ChunkRows rows;
  rows.rows = static_cast<int64_t>(chunks.size());
  rows.slot = columns.slot.get();
  rows.position = columns.position.get();
  rows.offset = batch.offset.get();
  rows.generated = columns.generated.get();
  rows.tokens = batch.tokens();
  rows.longest = batch.longest;
  const kernels::AttentionParams params = DeviceParams();
  const DeviceArray<float> workspace(static_cast<size_t>(
      kernels::cuda::AttentionPrefillWorkspaceFloats(params, rows.rows, rows.tokens)));
  ExpectOk(kernels::cuda::AttentionPrefill(params, rows, batch.in(in_), state(), batch.out(out_),
                                           workspace.get(), nullptr));
  return Outputs(batch);
}

std::vector<float> DeviceAttention::RunCut(const std::vector<float>& packed,
                                           const std::vector<int64_t>& lengths, int64_t generated) {
  const int64_t width = layer_.packed_width();
  const int64_t tokens = static_cast<int64_t>(packed.size()) / width;
  std::vector<float> y;
  size_t i = 0;
  for (int64_t t = 0; t < tokens;) {
    int64_t end = std::min(t + lengths[std::min(i++, lengths.size() - 1)], tokens);
    if (t < generated) end = std::min(end, generated);
    const std::vector<AttentionChunk> chunk = {
        {0, t, Tokens(packed, width, t, end), t >= generated}};
    const std::vector<float> part = end - t == 1 ? Step(chunk)[0] : Prefill(chunk)[0];
    y.insert(y.end(), part.begin(), part.end());
    t = end;
  }
  return y;
}

std::vector<std::vector<float>> DeviceAttention::Encode(
    const std::vector<std::vector<float>>& sequences,
    const std::vector<std::vector<float>>& masks) {
  const Batch batch(*this, sequences);
  const DeviceArray<float> mask(Batch::Joined(masks));
  kernels::cuda::Texts texts;
  texts.sequences = static_cast<int64_t>(sequences.size());
  texts.offset = batch.offset.get();
  texts.mask = masks.empty() ? nullptr : mask.get();
  texts.tokens = batch.tokens();
  texts.longest = batch.longest;
  const kernels::AttentionParams params = DeviceParams();
  const DeviceArray<float> workspace(static_cast<size_t>(
      kernels::cuda::AttentionEncodeWorkspaceFloats(params, texts.sequences, texts.tokens)));
  ExpectOk(kernels::cuda::AttentionEncode(params, texts, batch.in(in_), batch.out(out_),
                                          workspace.get(), nullptr));
  return Outputs(batch);
}

}  // namespace aft
