// Tests that an import has only one tensor in memory at a time.

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include "ATen/core/Tensor.h"
#include "ATen/ops/zeros.h"
#include "c10/core/CPUAllocator.h"
#include "gtest/gtest.h"
#include "model/config/tensors.h"
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

// 8 layers of 3 MiB. Every part of an import is as large as a few of a layer's tensors at most.
TEST(ImportMemoryTest, IsThatOfTheLargestTensor) {
  const TempFolder folder;
  NetworkConfig config;
  config.d_model = 256;
  config.d_ff = 1024;
  config.n_layers = 8;
  config.vocab_size = 256;
  config.tokenizer = "bytes";
  config.mixer.kind = MixerKind::kAftSimple;
  TensorMap tensors;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    tensors[spec.name] = at::zeros(spec.shape, at::kBFloat16);
  }
  ASSERT_EQ(WriteCheckpoint(folder.File("in"), config, tensors), absl::OkStatus());
  tensors.clear();

  const TensorBytes counted;
  for (const Number format : {Number::kBf16, Number::kInt8}) {
    const auto import = Quantized(folder.File("in"), format);
    ASSERT_TRUE(import.ok()) << import.status();
    ASSERT_EQ(WriteImport(folder.File(NumberName(format)), *import), absl::OkStatus());
  }
  const size_t largest = 1024 * 256 * sizeof(float);
  EXPECT_GT(counted.peak, largest);
  EXPECT_LT(counted.peak, 4 * largest);
}

}  // namespace
}  // namespace aft
