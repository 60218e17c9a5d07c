// Tests of RWKV's kernels on a GPU alone: heads of all widths, refusals, and the elementwise
// operations. relations_test.cc has what the kernels of all mixers promise.

#include "model/kernels/cuda/wkv/wkv.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "model/kernels/cuda/wkv/blend.h"
#include "tests/cuda/layer.h"
#include "tests/support/close.h"
#include "tests/support/same_bits.h"

namespace aft {
namespace {

namespace cuda = kernels::cuda;

constexpr int64_t kHead = 64;             // channels of a head that has a kernel of its own
constexpr int kInvalidValue = 1;          // cudaErrorInvalidValue
constexpr int kInvalidConfiguration = 9;  // cudaErrorInvalidConfiguration

class CudaWkvTest : public testing::Test {
 protected:
  TestRandom random_;
};

// Heads of one warp and of several. The state of the widest one fills 99 KiB of shared memory.
TEST_F(CudaWkvTest, HeadsOfAnyWidthGiveTheFormulasResults) {
  for (const int64_t width : {1, 31, 32, 33, 63, 64, 65, 128, 151}) {
    DeviceLayer(random_, Wkv7(2, width)).ExpectRuns(random_, 7, {3, 0, 2, 1});
  }
  for (const int64_t hid : {1, 127, 128, 129, 300}) {
    DeviceLayer(random_, Wkv4(hid)).ExpectRuns(random_, 11, {6, 0, 1, 3});
  }
}

TEST_F(CudaWkvTest, NoCutChangesABit) {
  for (const MixerCase& shape : {Wkv4(24), Wkv7(2, 12), Wkv7(1, 64)}) {
    DeviceLayer layer(random_, shape, 2);
    const Matrix packed = layer.Input(random_, 40);
    const Matrix whole = layer.Run(packed, {40}, 0);
    EXPECT_TRUE(SameBits(layer.Run(packed, {0}, 1), whole)) << layer.Name();
    EXPECT_TRUE(SameBits(layer.State(1), layer.State(0))) << layer.Name();
    EXPECT_TRUE(SameBits(layer.Run(packed, {7, 0, 13, 2}, 1), whole)) << layer.Name();
    EXPECT_TRUE(SameBits(layer.State(1), layer.State(0))) << layer.Name();
  }
}

// A head of 64 channels has another kernel where a state cannot be read in fours.
TEST_F(CudaWkvTest, StatesMayBeginAtAnyAddress) {
  constexpr int64_t kTokens = 9;
  constexpr int64_t kState = kHead * kHead;
  kernels::Wkv7Params params;
  params.hid = kHead;
  const DeviceArray<float> tables(random_.Normals(5 * kHead));
  params.key_scale = tables.get();
  params.key_rate = tables.get() + kHead;
  params.bonus = tables.get() + 2 * kHead;
  params.norm_weight = tables.get() + 3 * kHead;
  params.norm_bias = tables.get() + 4 * kHead;
  const DeviceMatrix packed(random_.Normals(kTokens * 6 * kHead), 6 * kHead, Number::kFp32);
  const Matrix before = random_.Normals(kState);
  const auto shifted = [&](int64_t shift) {
    Matrix all(static_cast<size_t>(shift), 0.0F);
    all.insert(all.end(), before.begin(), before.end());
    return all;
  };
  // The result and the state of slot 1, whose states are kState + `gap` apart and begin at `shift`.
  const auto run = [&](int64_t shift, int64_t gap, int64_t position) {
    const int64_t begin = shift + kState + gap;
    const DeviceArray<float> state(shifted(begin));
    const DeviceMatrix y(kTokens, kHead, Number::kFp32);
    EXPECT_EQ(cuda::Wkv7Forward(params,
                                {1, DeviceArray<int32_t>(std::vector<int32_t>{1}).get(),
                                 DeviceArray<int64_t>(std::vector<int64_t>{position}).get(),
                                 DeviceArray<int64_t>(std::vector<int64_t>{0, kTokens}).get(),
                                 nullptr, kTokens, kTokens},
                                packed.in(), {state.get() + shift, kState + gap}, y.out(), nullptr),
              0);
    Matrix result = y.Get();
    const Matrix after = state.Get();
    result.insert(result.end(), after.begin() + begin, after.end());
    return result;
  };
  const Matrix expected = run(0, 4, 3);
  EXPECT_TRUE(SameBits(run(1, 4, 3), expected));
  EXPECT_TRUE(SameBits(run(0, 2, 3), expected));
  const DeviceArray<float> initial(shifted(0));
  params.initial = initial.get();
  EXPECT_TRUE(SameBits(run(0, 4, 0), expected));
  const DeviceArray<float> unaligned(shifted(1));
  params.initial = unaligned.get() + 1;
  EXPECT_TRUE(SameBits(run(0, 4, 0), expected));
}

TEST_F(CudaWkvTest, RefusesWhatNoKernelCanRun) {
  const DeviceArray<int32_t> slot(std::vector<int32_t>{-1});
  const DeviceArray<int64_t> position(std::vector<int64_t>{0});
  cuda::ChunkRows rows;
  rows.rows = rows.tokens = 1;
  rows.slot = slot.get();
  rows.position = position.get();
  const auto seven = [&](int64_t hid, int64_t heads, Number in, Number out = Number::kFp32) {
    kernels::Wkv7Params params;
    params.hid = hid;
    params.heads = heads;
    const DeviceMatrix y(1, hid, out);
    return cuda::Wkv7Forward(params, rows, {nullptr, in, 6 * hid}, {}, y.out(), nullptr);
  };
  EXPECT_EQ(seven(64, 1, Number::kFp32), 0);
  EXPECT_EQ(seven(64, 1, Number::kFp16), kInvalidValue);
  EXPECT_EQ(seven(64, 1, Number::kBf16, Number::kBf16), kInvalidValue);
  EXPECT_EQ(seven(64, 3, Number::kFp32), kInvalidValue);
  EXPECT_EQ(seven(256, 1, Number::kFp32), kInvalidConfiguration);
  EXPECT_EQ(seven(512, 1, Number::kFp32), kInvalidConfiguration);
  for (const Number type : {Number::kBf16, Number::kFp16}) {
    const DeviceMatrix y(1, 8, type);
    EXPECT_EQ(cuda::Wkv4Forward({8}, rows, {nullptr, type, 24}, {}, y.out(), nullptr),
              kInvalidValue);
  }
}

// ---- Elementwise operations

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Tolerance Within(Number type) {
  return type == Number::kFp32   ? tolerance::kFewOperations
         : type == Number::kBf16 ? tolerance::kBf16
                                 : tolerance::kFp16;
}

// A token shift with three parts, and a state for each of four slots.
class CudaShiftTest : public CudaWkvTest {
 protected:
  struct Row {
    int32_t slot;
    int64_t position;
    int64_t tokens;
  };
  static constexpr int64_t kParts = 3;

  void SetWidth(int64_t width) {
    width_ = width;
    states_ = random_.Normals(4 * stride());
    share_ = random_.Normals(kParts * width);
  }
  int64_t stride() const { return width_ + 5; }

  // Runs the rows, and expects the formula's results and states. The parts of y begin further apart
  // than they have rows, and the rows between them stay NaN.
  void ExpectShifts(const std::vector<Row>& rows, Number type) {
    std::vector<int32_t> slots;
    std::vector<int64_t> positions;
    for (const Row& row : rows) {
      for (int64_t i = 0; i < row.tokens; ++i) {
        slots.push_back(row.slot);
        positions.push_back(row.position + i);
      }
    }
    const auto tokens = static_cast<int64_t>(slots.size());
    const int64_t part_rows = tokens + 2;
    const Matrix x = random_.Normals(tokens * width_);
    std::vector<double> expected(static_cast<size_t>(kParts * part_rows * width_), std::nan(""));
    Matrix kept = states_;
    for (int64_t i = 0; i < tokens * width_; ++i) {
      const auto t = static_cast<size_t>(i / width_);
      const int64_t c = i % width_;
      float ignored = 0;
      float& state = slots[t] < 0 ? ignored : kept[static_cast<size_t>(slots[t] * stride() + c)];
      const double before = positions[t] == 0 ? 0.0F : state;
      const double now = slots[t] < 0 ? 0.0F : x[static_cast<size_t>(i)];
      for (int64_t p = 0; p < kParts; ++p) {
        const double share = share_[static_cast<size_t>(p * width_ + c)];
        expected[static_cast<size_t>(p * part_rows * width_ + i)] =
            slots[t] < 0 ? 0.0 : now + (before - now) * share;
      }
      state = static_cast<float>(now);
    }
    const DeviceArray<int32_t> slot(slots);
    const DeviceArray<int64_t> position(positions);
    const DeviceArray<float> device_x(x);
    const DeviceArray<float> share(share_);
    const DeviceArray<float> state(states_);
    const DeviceMatrix y(kParts * part_rows, width_, type, width_ + 8);
    const bool single = tokens == static_cast<int64_t>(rows.size());
    ASSERT_EQ(cuda::ShiftTokens({width_, kParts, share.get()},
                                {tokens, slot.get(), position.get(), single}, device_x.get(),
                                {state.get(), stride()}, y.out(), part_rows, nullptr),
              0);
    EXPECT_TRUE(Close(y.Get(), expected, Within(type)));
    states_ = state.Get();
    EXPECT_TRUE(SameBits(states_, kept));
  }

  int64_t width_ = 0;
  Matrix states_;
  Matrix share_;
};

TEST_F(CudaShiftTest, MixesEachTokenWithTheOneBeforeItAndKeepsTheLast) {
  for (const int64_t width : {1, 33, 128}) {
    for (const Number type : {Number::kFp32, Number::kBf16, Number::kFp16}) {
      SCOPED_TRACE(testing::Message() << "width " << width << ", number " << NumberName(type));
      SetWidth(width);
      ExpectShifts({{2, 0, 1}, {-1, 0, 1}, {0, 9, 1}}, type);
      ExpectShifts({{0, 10, 1}, {1, 0, 1}, {-1, 0, 1}, {2, 1, 7}, {3, 0, 150}, {-1, 0, 4}}, type);
      ExpectShifts({{3, 150, 30}, {2, 0, 2}, {0, 11, 3}}, type);
      ExpectShifts({{3, 180, 1}, {1, 1, 1}}, type);
    }
  }
}

TEST_F(CudaWkvTest, ColumnsHaveFunctionsOfTheirOwn) {
  constexpr int64_t kWidth = 50;
  using Function = cuda::ColumnFunction;
  const Matrix x = random_.Normals(5 * kWidth, 5);
  std::vector<Function> functions;
  std::vector<double> expected;
  for (int64_t c = 0; c < kWidth; ++c) functions.push_back(static_cast<Function>(c / 7 % 3));
  for (const float value : x) {
    const Function function = functions[expected.size() % kWidth];
    expected.push_back(function == Function::kTanh      ? std::tanh(double{value})
                       : function == Function::kSigmoid ? Sigmoid(value)
                                                        : value);
  }
  const DeviceArray<float> device_x(x);
  const DeviceArray<Function> device_functions(functions);
  const auto apply = [&](cuda::Out y) {
    EXPECT_EQ(cuda::ApplyToColumns(device_x.get(), device_functions.get(), 5, kWidth, y, nullptr),
              0);
  };
  for (const Number type : {Number::kBf16, Number::kFp16}) {
    const DeviceMatrix y(5, kWidth, type, kWidth + 8);
    apply(y.out());
    EXPECT_TRUE(Close(y.Get(), expected, Within(type))) << NumberName(type);
  }
  apply({device_x.get(), Number::kFp32, kWidth});
  EXPECT_TRUE(Close(device_x.Get(), expected, Within(Number::kFp32)));
}

TEST_F(CudaWkvTest, GatesMixValuesWithTheFirstLayersAndMultiplyBySigmoids) {
  constexpr int64_t kWidth = 37;
  constexpr int64_t kCount = 9;
  const Matrix first = random_.Normals(kCount * kWidth);
  const Matrix later = random_.Normals(kCount * kWidth);
  Matrix gate = random_.Normals(kCount * kWidth, 5);
  gate[3] = 200;
  gate[7] = -200;
  std::vector<double> mixed;
  std::vector<double> gated;
  for (size_t i = 0; i < first.size(); ++i) {
    mixed.push_back(later[i] + (double{first[i]} - later[i]) * Sigmoid(gate[i]));
    gated.push_back(first[i] * Sigmoid(gate[i]));
  }
  const DeviceArray<float> gates(gate);
  const DeviceArray<float> kept(first.size());
  const auto mix = [&](const Matrix& values, const float* by) {
    const DeviceMatrix matrix(values, kWidth, Number::kFp32, kWidth + 11);
    EXPECT_EQ(cuda::MixValues(static_cast<float*>(matrix.out().data), matrix.out().stride, by,
                              kCount, kWidth, kept.get(), nullptr),
              0);
    return matrix.Get();
  };
  EXPECT_TRUE(SameBits(mix(first, nullptr), first));
  EXPECT_TRUE(Close(mix(later, gates.get()), mixed, tolerance::kFewOperations));
  EXPECT_TRUE(SameBits(kept.Get(), first));
  ASSERT_EQ(cuda::MultiplyBySigmoid(gates.get(), kCount, kWidth, kept.get(), nullptr), 0);
  EXPECT_TRUE(Close(kept.Get(), gated, tolerance::kFewOperations));
}

}  // namespace
}  // namespace aft
