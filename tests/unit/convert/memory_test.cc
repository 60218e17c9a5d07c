// Tests that an import has only one tensor in memory at a time.

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "ATen/core/Tensor.h"
#include "ATen/ops/zeros.h"
#include "c10/core/CPUAllocator.h"
#include "gtest/gtest.h"
#include "model/network/check_tensors.h"
#include "tests/unit/convert/harness.h"

namespace aft {
namespace {

// While an object of this class exists, it counts the bytes of all tensors.
class TensorBytes : public c10::Allocator {
 public:
  TensorBytes() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this); }
  ~TensorBytes() override { c10::SetCPUAllocator(before_); }

  c10::DataPtr allocate(size_t bytes) override {
    void* const data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    now += malloc_usable_size(data);
    peak = std::max(peak, now);
    return {data, data, &Delete, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static inline size_t now = 0;
  static inline size_t peak = 0;

 private:
  static void Delete(void* data) {
    now -= malloc_usable_size(data);
    std::free(data);
  }

  c10::Allocator* const before_;
};

// The tensors of all 8 layers are 13 times as large as the largest one is in fp32.
TEST(ImportMemoryTest, IsThatOfTheLargestTensor) {
  const TempFolder folder;
  const int64_t d = 192;
  WriteBytes(folder.File("in.pth"), TorchFileOf(RandomRwkv7(d, 8)));

  const TensorBytes counted;
  const auto import = ImportRwkv(folder.File("in.pth"), {});
  ASSERT_TRUE(import.ok()) << import.status();
  ASSERT_EQ(WriteImport(folder.File("out"), *import), absl::OkStatus());
  for (const FormatSpec& format : kFormats) {
    if (!format.is_converted_to) continue;
    const auto converted = Quantized(folder.File("out"), format.format);
    ASSERT_TRUE(converted.ok()) << converted.status();
    ASSERT_EQ(WriteImport(folder.File(format.name), *converted), absl::OkStatus());
  }
  const auto largest = static_cast<size_t>(3 * d * d) * sizeof(float);
  EXPECT_GT(counted.peak, largest);
  EXPECT_LT(counted.peak, 3 * largest);
}

// Neither the server nor `aft-convert inspect` may take more memory for a bad folder than for a
// good one.
TEST(ImportMemoryTest, ATensorOfAnotherShapeIsNotRead) {
  const TempFolder folder;
  const int64_t d = 128;
  WriteBytes(folder.File("in.pth"), TorchFileOf(RandomRwkv7(d, 1)));
  const std::string dir = folder.File("out");
  ASSERT_EQ(WriteImport(dir, *ImportRwkv(folder.File("in.pth"), {})), absl::OkStatus());
  const std::string path = dir + "/" + kWeightsFileName;
  TensorMap tensors = ReadSafetensors(path)->tensors;
  const at::Tensor large = at::zeros({1 << 16, d});
  tensors["embed.weight"] = large;
  ASSERT_EQ(WriteSafetensors(path, tensors), absl::OkStatus());
  const std::string state = folder.File("state");
  ASSERT_EQ(WriteSafetensors(state, {{"layers.0.mixer.initial_state", large}}), absl::OkStatus());
  const auto file = OpenCheckpoint(dir);
  ASSERT_TRUE(file.ok()) << file.status();

  TensorBytes::peak = TensorBytes::now;
  const TensorBytes counted;
  EXPECT_THAT(CheckTensors(file->config, file->tensors),
              StatusIs(absl::StatusCode::kDataLoss,
                       "embed.weight has shape [65536, 128], the config asks for [256, 128]"));
  EXPECT_THAT(ReadStateFile(state, file->config), Refused("must have floating-point numbers and"));
  EXPECT_LT(TensorBytes::peak - TensorBytes::now, large.nbytes());
}

}  // namespace
}  // namespace aft
