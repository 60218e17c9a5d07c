#include "tests/cuda/layer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"
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

ReferenceTables RandomTables(TestRandom& random, const LayerShape& shape) {
  ReferenceTables tables;
  for (const TensorSpec& spec : ExpectedMixerTables(shape.config, shape.hid)) {
    const Matrix table = random.Normals(std::max<int64_t>(spec.count(), 0), shape.spread);
    tables[spec.name] = {table.begin(), table.end()};
  }
  return tables;
}

std::unique_ptr<KernelFamilyCalls> MakeCalls(const LayerShape& shape, const ReferenceTables& tables,
                                             int64_t slots) {
  switch (SpecOf(shape.config.kind).family) {
    case KernelFamily::kAft:
      return MakeAftCalls(shape, tables, slots);
    case KernelFamily::kConv:
      return MakeConvCalls(shape, tables);
    case KernelFamily::kAttention:
      return MakeAttentionCalls(shape, tables);
  }
  return nullptr;
}

std::vector<Matrix> Inputs(const std::vector<LayerChunk>& chunks) {
  std::vector<Matrix> parts;
  for (const LayerChunk& chunk : chunks) parts.push_back(chunk.packed);
  return parts;
}

// The largest sum of absolute terms of a score q . k, of all rows: what its rounding goes by.
// Queries stand first in a row of `packed`.
double LargestScore(const Matrix& packed, const std::vector<double>& keys, int64_t hid) {
  double largest = 0;
  for (size_t q = 0; q < packed.size(); q += Size(2 * hid)) {
    for (size_t k = 0; k < keys.size(); k += Size(hid)) {
      double sum = 0;
      for (size_t c = 0; c < Size(hid); ++c) sum += std::abs(packed[q + c] * keys[k + c]);
      largest = std::max(largest, sum);
    }
  }
  return largest;
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
        out(tokens(), layer.hid(), layer.storage_.out, Stride(layer.hid(), layer.storage_.padded)),
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

DeviceLayer::DeviceLayer(TestRandom& random, const LayerShape& shape, int64_t slots,
                         Storage storage)
    : DeviceLayer(shape, RandomTables(random, shape), slots, storage) {}

DeviceLayer::DeviceLayer(const LayerShape& shape, const ReferenceTables& tables, int64_t slots,
                         Storage storage)
    : shape_(shape),
      tables_(tables),
      calls_(MakeCalls(shape_, tables_, slots)),
      packed_width_(PackedWidth(shape_.config, shape_.hid)),
      slot_stride_((calls_->state_floats() + 15) / 16 * 16),
      storage_(storage),
      states_(Size(slots * slot_stride_)),
      cpu_states_(states_.Get()) {
  const std::vector<PackedPart> parts =
      SpecOf(shape_.config.kind).packed(shape_.config, shape_.hid);
  key_column_ = parts[0].columns;
  value_column_ = key_column_;
  if (absl::string_view(parts[1].name) != "v") value_column_ += parts[1].columns;
}

std::string DeviceLayer::Name() const {
  const MixerConfig& config = shape_.config;
  return absl::StrCat(SpecOf(config.kind).name, ", hid ", hid(), ", heads ", config.heads,
                      ", window ", config.window, ", rows ", config.band_rows, ", H ",
                      config.prefix_block, ", block ", config.block_size,
                      config.global_token ? "" : ", no global token",
                      config.ring == Number::kBf16 ? ", bf16 ring" : "", ", spread ", shape_.spread,
                      config.causal ? "" : ", both ways", ", images of width ", shape_.grid_width,
                      ", ", storage_.Name());
}

std::vector<Matrix> DeviceLayer::Outputs(const Batch& batch) const {
  const Matrix y = batch.out.Get();
  std::vector<Matrix> outputs;
  for (size_t i = 1; i < batch.offsets.size(); ++i) {
    outputs.push_back(Rows(y, hid(), batch.offsets[i - 1], batch.offsets[i]));
  }
  return outputs;
}

std::vector<Matrix> DeviceLayer::Step(const std::vector<LayerChunk>& chunks) {
  const Batch batch(*this, Inputs(chunks));
  AFT_CHECK(batch.tokens() == batch.rows() && batch.longest == 1);
  const DeviceArray<int32_t> slot(Each<int32_t>(chunks, [](auto& c) { return c.slot; }));
  const DeviceArray<int64_t> position(Each<int64_t>(chunks, [](auto& c) { return c.position; }));
  const DeviceArray<int32_t> age(Each<int32_t>(chunks, [](auto& c) { return c.age; }));
  const DeviceArray<uint8_t> generated(
      Each<uint8_t>(chunks, [](auto& c) { return static_cast<uint8_t>(c.generated ? 1 : 0); }));
  const kernels::cuda::StepRows rows = {batch.rows(), slot.get(), position.get(), generated.get(),
                                        age.get()};
  ExpectOk(calls_->Step(rows, batch.in.in(), {states_.get(), slot_stride_}, batch.out.out()));
  return Outputs(batch);
}

std::vector<Matrix> DeviceLayer::Prefill(const std::vector<LayerChunk>& chunks) {
  const Batch batch(*this, Inputs(chunks));
  const DeviceArray<int32_t> slot(Each<int32_t>(chunks, [](auto& c) { return c.slot; }));
  const DeviceArray<int64_t> position(Each<int64_t>(chunks, [](auto& c) { return c.position; }));
  const DeviceArray<uint8_t> generated(
      Each<uint8_t>(chunks, [](auto& c) { return static_cast<uint8_t>(c.generated ? 1 : 0); }));
  const kernels::cuda::ChunkRows rows = {batch.rows(),       slot.get(),      position.get(),
                                         batch.offset.get(), generated.get(), batch.tokens(),
                                         batch.longest};
  ExpectOk(calls_->Prefill(rows, batch.in.in(), {states_.get(), slot_stride_}, batch.out.out()));
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
  ExpectOk(calls_->Encode(rows, batch.in.in(), batch.out.out()));
  return Outputs(batch);
}

std::vector<Matrix> DeviceLayer::OnCpu(const std::vector<LayerChunk>& chunks) {
  std::vector<Matrix> outputs;
  for (const LayerChunk& chunk : chunks) {
    const int64_t tokens = static_cast<int64_t>(chunk.packed.size()) / packed_width_;
    outputs.emplace_back(Size(tokens * hid()));
    const int64_t offset[] = {0, tokens};
    const uint8_t generated = chunk.generated ? 1 : 0;
    calls_->OnCpu({1, &chunk.slot, &chunk.position, offset, &generated}, chunk.packed.data(),
                  cpu_states_.data(), slot_stride_, outputs.back().data());
  }
  return outputs;
}

Matrix DeviceLayer::Run(const Matrix& packed, const std::vector<int64_t>& lengths, int32_t slot,
                        int64_t generated) {
  const int64_t tokens = static_cast<int64_t>(packed.size()) / packed_width_;
  Matrix y;
  size_t i = 0;
  for (int64_t t = 0; t < tokens;) {
    const int64_t length = lengths[std::min(i++, lengths.size() - 1)];
    int64_t end = std::min(t + std::max<int64_t>(length, 1), tokens);
    if (t < generated) end = std::min(end, generated);
    std::vector<LayerChunk> chunk = {Chunk(packed, t, end, slot)};
    chunk[0].generated = t >= generated;
    const Matrix part = (length == 0 ? Step(chunk) : Prefill(chunk))[0];
    y.insert(y.end(), part.begin(), part.end());
    t = end;
  }
  return y;
}

Matrix DeviceLayer::Input(TestRandom& random, int64_t tokens, const std::string& keys) const {
  Matrix packed = random.Normals(tokens * packed_width());
  if (SpecOf(shape_.config.kind).family != KernelFamily::kAttention) {
    const int64_t columns = value_column_ - key_column_;
    const Matrix qkv = RandomQkv(random, keys, tokens, columns);
    for (int64_t t = 0; t < tokens; ++t) {
      std::copy_n(qkv.begin() + (3 * t + 1) * columns, columns,
                  packed.begin() + t * packed_width() + key_column_);
    }
  }
  return Rounded(packed, storage_.in);
}

LayerChunk DeviceLayer::Chunk(const Matrix& packed, int64_t begin, int64_t end,
                              int32_t slot) const {
  return {slot, begin, Rows(packed, packed_width_, begin, end)};
}

std::vector<double> DeviceLayer::Reference(const Matrix& packed, const Matrix& mask) const {
  const MixerConfig& config = shape_.config;
  std::vector<double> stored(packed.begin(), packed.end());
  // As a bf16 ring holds them: keys and values rounded.
  const bool rounds = config.ring == Number::kBf16 && config.causal &&
                      (config.kind == MixerKind::kAftConv || config.window > 1);
  for (int64_t i = 0; rounds && i < static_cast<int64_t>(stored.size()); ++i) {
    const int64_t column = i % packed_width_;
    if (column < key_column_) continue;
    stored[Size(i)] = static_cast<double>(Rounded({packed[Size(i)]}, Number::kBf16)[0]);
  }
  return ReferenceMixer(config, hid(), stored, tables_, {mask.begin(), mask.end()},
                        shape_.grid_width);
}

void DeviceLayer::ExpectNear(const Matrix& y, const Matrix& packed, const Matrix& mask) const {
  ExpectNear(y, packed, Reference(packed, mask));
}

void DeviceLayer::ExpectNear(const Matrix& y, const Matrix& packed,
                             const std::vector<double>& expected) const {
  float largest = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(packed.size()); ++i) {
    const int64_t column = i % packed_width_ - value_column_;
    const float value = std::abs(packed[Size(i)]);
    if (column >= 0 && column < hid() && value > largest) largest = value;
  }
  const bool fp32 = storage_.in == Number::kFp32 && storage_.out == Number::kFp32;
  const float mean = fp32 ? tolerance::kMean : tolerance::kMeanBf16;
  for (const float value : y) ASSERT_LE(std::abs(value), largest * (1 + mean)) << Name();
  // Relative to the whole, results that are all small because values cancel look worse than they
  // are.
  if (y.size() == expected.size() &&
      CompareWith(expected, y).worst <= tolerance::kFewOperations.each) {
    return;
  }
  Tolerance allowed = {tolerance::kFp32.each};
  if (shape_.config.kind == MixerKind::kLocation) {  // scores are not scaled
    allowed =
        tolerance::AttentionSplitTf32(LargestScore(packed, tables_.at("location.weight"), hid()));
  }
  if (SpecOf(shape_.config.kind).family == KernelFamily::kAft) {
    allowed = shape_.spread > 5 ? tolerance::kFp32Spread : tolerance::kFp32;
  } else if (shape_.spread > 100) {
    allowed = tolerance::kFp32Large;  // entries of some hundreds have larger ulps
  }
  if (!fp32) allowed = storage_.out == Number::kFp16 ? tolerance::kFp16 : tolerance::kBf16;
  EXPECT_TRUE(Close(y, expected, allowed)) << Name();
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
  for (int64_t i = 0; i < calls_->state_floats(); ++i) {
    if (std::memcmp(&state[Size(i)], cpu + i, sizeof(float)) == 0) continue;
    const double allowed = calls_->StateTolerance(cpu, i);
    ASSERT_TRUE(allowed > 0) << Name() << ": number " << i << " of slot " << slot << " is "
                             << state[Size(i)] << ", not " << cpu[i];
    ASSERT_NEAR(state[Size(i)], cpu[i], allowed) << Name() << ": number " << i;
  }
}

const std::vector<MixerKind> kAttentions = {MixerKind::kDotProduct, MixerKind::kCosine,
                                            MixerKind::kAdditive, MixerKind::kLocation,
                                            MixerKind::kBlockLocal};

LayerShape Aft(int64_t hid, MixerConfig config, double spread) {
  config.length_policy = LengthPolicy::kClamp;
  return {config, hid, spread};
}

LayerShape Conv(int64_t hid, int64_t heads, int64_t taps, double spread) {
  return {{.kind = MixerKind::kAftConv, .window = taps, .heads = heads}, hid, spread};
}

LayerShape Attention(MixerKind kind, int64_t heads, int64_t width, int64_t capacity) {
  MixerConfig config = {.kind = kind, .heads = heads};
  if (kind == MixerKind::kLocation) {
    config.heads = 1;
    config.band_rows = capacity;
  }
  if (kind == MixerKind::kAdditive) config.score_width = 5;
  if (kind == MixerKind::kBlockLocal) config.block_size = 16;
  return {config, config.heads * width, 1.0, 0, capacity};
}

LayerShape Image(int64_t hid, int64_t heads, int64_t taps, int64_t width, double spread) {
  LayerShape shape = BothWays(Conv(hid, heads, taps, spread));
  shape.config.grid = true;
  shape.grid_width = width;
  return shape;
}

LayerShape Blocks(int64_t heads, int64_t width, int64_t block_size, bool global_token) {
  LayerShape shape = Attention(MixerKind::kBlockLocal, heads, width);
  shape.config.block_size = block_size;
  shape.config.global_token = global_token;
  return shape;
}

LayerShape BothWays(LayerShape shape) {
  shape.config.causal = false;
  return shape;
}
LayerShape WithBf16Ring(LayerShape shape) {
  shape.config.ring = Number::kBf16;
  return shape;
}

Matrix Rows(const Matrix& matrix, int64_t width, int64_t begin, int64_t end) {
  return {matrix.begin() + begin * width, matrix.begin() + end * width};
}

bool Full() { return std::getenv("AFT_CUDA_FULL") != nullptr; }

}  // namespace aft
