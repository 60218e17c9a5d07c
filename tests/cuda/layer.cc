#include "tests/cuda/layer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "gtest/gtest.h"
#include "model/kernels/ragged_batch.h"  // kMaskedBelow
#include "tests/support/close.h"

namespace aft {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

void ExpectOk(int error) {
  EXPECT_EQ(error, 0) << cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Rows with a gap behind them that keeps them aligned to 16 bytes.
int64_t Stride(int64_t width, bool padded) { return padded ? (width + 15) / 8 * 8 : width; }

Matrix Joined(const std::vector<Matrix>& parts) {
  Matrix all;
  for (const Matrix& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<int64_t> Offsets(const std::vector<Matrix>& parts, int64_t width) {
  std::vector<int64_t> offsets = {0};
  for (const Matrix& part : parts) {
    offsets.push_back(offsets.back() + static_cast<int64_t>(part.size()) / width);
  }
  return offsets;
}

std::vector<Matrix> Inputs(const std::vector<LayerChunk>& chunks) {
  std::vector<Matrix> parts;
  for (const LayerChunk& chunk : chunks) parts.push_back(chunk.packed);
  return parts;
}

template <typename T, typename Get>
std::vector<T> Each(const std::vector<LayerChunk>& chunks, Get get) {
  std::vector<T> values;
  for (const LayerChunk& chunk : chunks) values.push_back(get(chunk));
  return values;
}

}  // namespace

const std::vector<Storage> kStorages = {
    {Number::kFp32, Number::kFp32, true}, {Number::kFp32, Number::kFp32, false},
    {Number::kFp32, Number::kBf16, true}, {Number::kFp32, Number::kFp16, true},
    {Number::kBf16, Number::kBf16, true}, {Number::kBf16, Number::kBf16, false}};

std::string Storage::Name() const {
  const auto name = [](Number type) {
    return std::string(type == Number::kFp32 ? "fp32" : type == Number::kBf16 ? "bf16" : "fp16");
  };
  return name(in) + " to " + name(out) + (padded ? ", gaps between rows" : "");
}

// A batch on the device, and its y.
struct DeviceLayer::Batch {
  Batch(const DeviceLayer& layer, const std::vector<Matrix>& parts)
      : offsets(Offsets(parts, layer.packed_width_)),
        in(Joined(parts), layer.packed_width_, layer.storage_.in,
           Stride(layer.packed_width_, layer.storage_.padded)),
        out(tokens(), layer.hid_, layer.storage_.out, Stride(layer.hid_, layer.storage_.padded)),
        offset(offsets) {
    for (size_t i = 1; i < offsets.size(); ++i) {
      longest = std::max(longest, offsets[i] - offsets[i - 1]);
    }
  }
  int64_t rows() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t tokens() const { return offsets.back(); }

  const std::vector<int64_t> offsets;
  int64_t longest = 0;
  const DeviceMatrix in;
  const DeviceMatrix out;
  const DeviceArray<int64_t> offset;
};

DeviceLayer::DeviceLayer(int64_t hid, int64_t packed_width, int64_t state_floats, int64_t slots,
                         Storage storage)
    : hid_(hid),
      packed_width_(packed_width),
      state_floats_(state_floats),
      slot_stride_((state_floats + 15) / 16 * 16),
      storage_(storage),
      states_(Size(slots * slot_stride_)),
      cpu_states_(states_.Get()) {}

std::vector<Matrix> DeviceLayer::Outputs(const Batch& batch) const {
  const Matrix y = batch.out.Get();
  std::vector<Matrix> outputs;
  for (size_t i = 1; i < batch.offsets.size(); ++i) {
    outputs.push_back(Rows(y, hid_, batch.offsets[i - 1], batch.offsets[i]));
  }
  return outputs;
}

std::vector<Matrix> DeviceLayer::Step(const std::vector<LayerChunk>& chunks) {
  const Batch batch(*this, Inputs(chunks));
  AFT_CHECK(batch.tokens() == batch.rows() && batch.longest == 1);
  const DeviceArray<int32_t> slot(Each<int32_t>(chunks, [](auto& c) { return c.slot; }));
  const DeviceArray<int64_t> position(Each<int64_t>(chunks, [](auto& c) { return c.position; }));
  const DeviceArray<int32_t> age(Each<int32_t>(chunks, [](auto& c) { return c.age; }));
  const DeviceArray<uint8_t> generated(Each<uint8_t>(
      chunks, [&](auto& c) { return static_cast<uint8_t>(Generated(c.position) ? 1 : 0); }));
  const kernels::cuda::StepRows rows = {batch.rows(), slot.get(), position.get(), generated.get(),
                                        age.get()};
  const DeviceArray<float> workspace(Size(StepFloats(batch.rows())));
  ExpectOk(CallStep(rows, batch.in.in(), {states_.get(), slot_stride_}, batch.out.out(),
                    workspace.get()));
  return Outputs(batch);
}

std::vector<Matrix> DeviceLayer::Prefill(const std::vector<LayerChunk>& chunks) {
  const Batch batch(*this, Inputs(chunks));
  const DeviceArray<int32_t> slot(Each<int32_t>(chunks, [](auto& c) { return c.slot; }));
  const DeviceArray<int64_t> position(Each<int64_t>(chunks, [](auto& c) { return c.position; }));
  const DeviceArray<uint8_t> generated(Each<uint8_t>(
      chunks, [&](auto& c) { return static_cast<uint8_t>(Generated(c.position) ? 1 : 0); }));
  const kernels::cuda::ChunkRows rows = {batch.rows(),       slot.get(),      position.get(),
                                         batch.offset.get(), generated.get(), batch.tokens(),
                                         batch.longest};
  const DeviceArray<float> workspace(Size(PrefillFloats(batch.rows(), batch.tokens())));
  ExpectOk(CallPrefill(rows, batch.in.in(), {states_.get(), slot_stride_}, batch.out.out(),
                       workspace.get()));
  return Outputs(batch);
}

std::vector<Matrix> DeviceLayer::Encode(const std::vector<Matrix>& texts,
                                        const std::vector<Matrix>& masks) {
  const Batch batch(*this, texts);
  const DeviceArray<float> mask(Joined(masks));
  kernels::cuda::Texts rows;
  rows.sequences = batch.rows();
  rows.offset = batch.offset.get();
  rows.mask = masks.empty() ? nullptr : mask.get();
  rows.tokens = batch.tokens();
  rows.longest = batch.longest;
  const DeviceArray<float> workspace(Size(EncodeFloats(batch.rows(), batch.tokens())));
  ExpectOk(CallEncode(rows, batch.in.in(), batch.out.out(), workspace.get()));
  return Outputs(batch);
}

std::vector<Matrix> DeviceLayer::OnCpu(const std::vector<LayerChunk>& chunks) {
  std::vector<Matrix> outputs;
  for (const LayerChunk& chunk : chunks) {
    const int64_t tokens = static_cast<int64_t>(chunk.packed.size()) / packed_width_;
    outputs.emplace_back(Size(tokens * hid_));
    CallCpu(chunk, tokens, cpu_states_.data(), slot_stride_, outputs.back().data());
  }
  return outputs;
}

Matrix DeviceLayer::Run(const Matrix& packed, const std::vector<int64_t>& lengths, int32_t slot) {
  const int64_t tokens = static_cast<int64_t>(packed.size()) / packed_width_;
  Matrix y;
  size_t i = 0;
  for (int64_t t = 0; t < tokens;) {
    const int64_t length = lengths[std::min(i++, lengths.size() - 1)];
    int64_t end = std::min(t + std::max<int64_t>(length, 1), tokens);
    while (Generated(end - 1) != Generated(t)) --end;
    const std::vector<LayerChunk> chunk = {Chunk(packed, t, end, slot)};
    const Matrix part = (length == 0 ? Step(chunk) : Prefill(chunk))[0];
    y.insert(y.end(), part.begin(), part.end());
    t = end;
  }
  return y;
}

Matrix DeviceLayer::Input(TestRandom& random, int64_t tokens, const std::string& keys) const {
  return Rounded(RawInput(random, tokens, keys), storage_.in);
}

LayerChunk DeviceLayer::Chunk(const Matrix& packed, int64_t begin, int64_t end,
                              int32_t slot) const {
  return {slot, begin, Rows(packed, packed_width_, begin, end)};
}

std::vector<double> DeviceLayer::InBf16Ring(const Matrix& packed, const Matrix& mask) const {
  std::vector<double> stored(packed.begin(), packed.end());
  const auto [begin, end] = KeysAndValues();
  for (int64_t i = 0; i < static_cast<int64_t>(stored.size()); ++i) {
    const int64_t column = i % packed_width_;
    if (column < begin || column >= end) continue;
    const bool key = column < ValueColumn();
    float add = key && !mask.empty() ? mask[Size(i / packed_width_)] : 0.0F;
    if (add <= kMaskedBelow) add = 0.0F;  // nobody reads it
    stored[Size(i)] = static_cast<double>(Rounded({packed[Size(i)] + add}, Number::kBf16)[0]) -
                      static_cast<double>(add);
  }
  return stored;
}

void DeviceLayer::ExpectNear(const Matrix& y, const Matrix& packed, const Matrix& mask) const {
  const Expected expected = Reference(packed, mask);
  float largest = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(packed.size()); ++i) {
    const int64_t column = i % packed_width_ - ValueColumn();
    const float value = std::abs(packed[Size(i)]);
    if (column >= 0 && column < hid_ && value > largest) largest = value;
  }
  const bool fp32 = storage_.in == Number::kFp32 && storage_.out == Number::kFp32;
  const float mean = fp32 ? tolerance::kMean : tolerance::kMeanBf16;
  for (const float value : y) ASSERT_LE(std::abs(value), largest * (1 + mean)) << Name();
  // Relative to the whole, results that are all small because values cancel look worse than they
  // are.
  if (y.size() == expected.y.size() &&
      CompareWith(expected.y, y).worst <= tolerance::kFewOperations.each) {
    return;
  }
  Tolerance allowed = expected.tolerance;
  if (!fp32) allowed = storage_.out == Number::kFp16 ? tolerance::kFp16 : tolerance::kBf16;
  EXPECT_TRUE(Close(y, expected.y, allowed)) << Name() << ", " << storage_.Name();
}

void DeviceLayer::ExpectRuns(TestRandom& random, int64_t tokens,
                             const std::vector<int64_t>& lengths, const std::string& keys) {
  SCOPED_TRACE(Name() + ", keys " + keys + ", " + std::to_string(tokens) + " tokens");
  const Matrix packed = Input(random, tokens, keys);
  ExpectNear(Run(packed, lengths), packed);
  OnCpu({Chunk(packed, 0, tokens)});
  ExpectStateOfCpu(0);
}

void DeviceLayer::ExpectEncodes(TestRandom& random, int64_t tokens, const std::string& keys,
                                const Matrix& mask) {
  SCOPED_TRACE(Name() + ", keys " + keys + ", " + std::to_string(tokens) + " tokens" +
               (mask.empty() ? "" : ", masked"));
  const Matrix packed = Input(random, tokens, keys);
  const std::vector<Matrix> masks(mask.empty() ? 0 : 1, mask);
  ExpectNear(Encode({packed}, masks)[0], packed, mask);
}

Matrix DeviceLayer::State(int32_t slot) const {
  return Rows(states_.Get(), slot_stride_, slot, slot + 1);
}

void DeviceLayer::ExpectStateOfCpu(int32_t slot) const {
  const Matrix state = State(slot);
  const float* const cpu = cpu_states_.data() + slot * slot_stride_;
  for (int64_t i = 0; i < state_floats_; ++i) {
    if (std::memcmp(&state[Size(i)], cpu + i, sizeof(float)) == 0) continue;
    const double allowed = StateTolerance(cpu, i);
    ASSERT_TRUE(allowed > 0) << Name() << ": number " << i << " of slot " << slot << " is "
                             << state[Size(i)] << ", not " << cpu[i];
    ASSERT_NEAR(state[Size(i)], cpu[i], allowed) << Name() << ": number " << i;
  }
}

Matrix Rows(const Matrix& matrix, int64_t width, int64_t begin, int64_t end) {
  return {matrix.begin() + begin * width, matrix.begin() + end * width};
}

bool Full() { return std::getenv("AFT_CUDA_FULL") != nullptr; }

}  // namespace aft
