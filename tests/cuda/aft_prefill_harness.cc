#include "tests/cuda/aft_prefill_harness.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "gtest/gtest.h"
#include "tests/cuda/compare.h"

namespace aft::aft_prefill_test {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

// Ragged rows, one after the other.
struct Rows {
  template <typename Sequences, typename Get>
  Rows(const Sequences& sequences, int64_t width, Get get) {
    for (const auto& sequence : sequences) {
      const std::vector<float>& part = get(sequence);
      all.insert(all.end(), part.begin(), part.end());
      offsets.push_back(static_cast<int64_t>(all.size()) / width);
      longest = std::max(longest, offsets.back() - offsets[offsets.size() - 2]);
    }
  }
  int64_t tokens() const { return offsets.back(); }
  std::vector<std::vector<float>> Split(const std::vector<float>& matrix, int64_t width) const {
    std::vector<std::vector<float>> parts;
    for (size_t i = 1; i < offsets.size(); ++i) {
      parts.push_back(Part(matrix, width, offsets[i - 1], offsets[i]));
    }
    return parts;
  }

  std::vector<float> all;
  std::vector<int64_t> offsets = {0};
  int64_t longest = 0;
};

}  // namespace

std::vector<std::vector<float>> Runner::Prefill(const std::vector<Chunk>& chunks) {
  const int64_t hid = layer_.hid;
  const Rows rows(chunks, 3 * hid,
                  [](const Chunk& c) -> const std::vector<float>& { return c.qkv; });
  std::vector<int32_t> slots;
  std::vector<int64_t> positions;
  for (const Chunk& chunk : chunks) {
    slots.push_back(chunk.slot);
    positions.push_back(chunk.position);
  }
  const DeviceMatrix in = In(rows.all);
  const DeviceMatrix out = Out(rows.tokens());
  const DeviceArray<int32_t> slot(slots);
  const DeviceArray<int64_t> position(positions);
  const DeviceArray<int64_t> offset(rows.offsets);
  kernels::cuda::ChunkRows batch;
  batch.rows = static_cast<int64_t>(chunks.size());
  batch.slot = slot.get();
  batch.position = position.get();
  batch.offset = offset.get();
  batch.tokens = rows.tokens();
  batch.longest = rows.longest;
  const DeviceArray<float> workspace(
      Size(kernels::cuda::AftPrefillWorkspaceFloats(model_, batch.rows, batch.tokens)));
  EXPECT_EQ(kernels::cuda::AftPrefill(model_, batch, in.in(), DeviceStates(), out.out(),
                                      workspace.get(), nullptr),
            0);
  return rows.Split(out.Get(), hid);
}

std::vector<float> Runner::PrefillCut(const std::vector<float>& qkv,
                                      const std::vector<int64_t>& lengths) {
  const int64_t width = 3 * layer_.hid;
  const int64_t tokens = static_cast<int64_t>(qkv.size()) / width;
  std::vector<float> y;
  size_t i = 0;
  for (int64_t t = 0; t < tokens;) {
    const int64_t end = std::min(t + lengths[std::min(i++, lengths.size() - 1)], tokens);
    AFT_CHECK(end > t);
    const std::vector<float> part = Prefill({{0, t, Part(qkv, width, t, end)}})[0];
    y.insert(y.end(), part.begin(), part.end());
    t = end;
  }
  return y;
}

std::vector<std::vector<float>> Runner::OnCpu(const std::vector<Chunk>& chunks) {
  std::vector<std::vector<float>> outputs;
  for (const Chunk& chunk : chunks) {
    outputs.push_back(ChunkOnCpu(chunk.slot, chunk.position, chunk.qkv));
  }
  return outputs;
}

std::vector<std::vector<float>> Runner::Encode(const std::vector<std::vector<float>>& texts,
                                               const std::vector<std::vector<float>>& masks) const {
  const int64_t hid = layer_.hid;
  const auto same = [](const std::vector<float>& x) -> const std::vector<float>& { return x; };
  const Rows rows(texts, 3 * hid, same);
  const Rows all_masks(masks, 1, same);
  const DeviceMatrix in = In(rows.all);
  const DeviceMatrix out = Out(rows.tokens());
  const DeviceArray<int64_t> offset(rows.offsets);
  const DeviceArray<float> mask(all_masks.all);
  kernels::cuda::Texts batch;
  batch.sequences = static_cast<int64_t>(texts.size());
  batch.offset = offset.get();
  batch.mask = masks.empty() ? nullptr : mask.get();
  batch.tokens = rows.tokens();
  batch.longest = rows.longest;
  const DeviceArray<float> workspace(
      Size(kernels::cuda::AftEncodeWorkspaceFloats(model_, batch.sequences, batch.tokens)));
  EXPECT_EQ(kernels::cuda::AftEncode(model_, batch, in.in(), out.out(), workspace.get(), nullptr),
            0);
  return rows.Split(out.Get(), hid);
}

void Runner::ExpectNear(const std::vector<float>& y, const std::vector<float>& qkv,
                        const std::vector<float>& mask) const {
  const Errors errors = CompareWith(Reference(qkv, mask), y);
  float largest = 0.0F;
  for (size_t i = 0; i < qkv.size(); ++i) {
    if (i % Size(3 * layer_.hid) >= Size(2 * layer_.hid)) {
      largest = std::max(largest, std::abs(qkv[i]));
    }
  }
  const bool fp32 = storage_.out == Number::kFp32;
  for (const float value : y) ASSERT_LE(std::abs(value), largest * (fp32 ? 1.00001F : 1.01F));
  if (fp32) {
    EXPECT_LE(errors.worst, 1e-5);
    // Not of results that are all small because values cancel; exponents of tens lose some bits.
    if (errors.worst > 1e-6) {
      EXPECT_LE(errors.rms, layer_.spread > 5 ? 3e-6 : 1e-6);
    }
  } else {
    EXPECT_LE(errors.relative, 1e-2);
    EXPECT_LE(errors.rms, 5e-3);
  }
}

std::vector<float> Part(const std::vector<float>& matrix, int64_t width, int64_t begin,
                        int64_t end) {
  return {matrix.begin() + begin * width, matrix.begin() + end * width};
}

bool Full() { return std::getenv("AFT_CUDA_FULL") != nullptr; }

}  // namespace aft::aft_prefill_test
