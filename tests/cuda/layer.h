#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/gpu_model/gpu_mixers.h"
#include "tests/property/mixer_harness.h"
#include "tests/property/random_inputs.h"

namespace aft {

using Matrix = std::vector<float>;  // row-major

inline constexpr Storage kBf16Storage = {Number::kBf16, Number::kBf16};
// Every pair that all families have kernels for.
extern const std::vector<Storage> kStorages;

// One mixer with the same tables on the GPU and on the CPU, and the formula beside both.
class DeviceLayer {
 public:
  // With random tables, or given ones.
  DeviceLayer(TestRandom& random, const MixerCase& shape, int32_t slots = 1, Storage storage = {});
  DeviceLayer(const MixerCase& shape, const std::map<std::string, Matrix>& tables);

  std::string Name() const;
  int64_t hid() const { return shape_.hid; }
  int64_t packed_width() const { return cpu_.width(); }
  int64_t key_column() const { return cpu_.key_column(); }
  int64_t value_column() const { return cpu_.value_column(); }
  const Storage& storage() const { return storage_; }
  TestMixer& cpu() { return cpu_; }
  GpuTestMixer& gpu() { return gpu_; }

  // One batch on the GPU: y of each chunk. Step: chunks of one token, with look-ahead where there
  // are `ages`.
  std::vector<Matrix> Step(const std::vector<MixerChunk>& chunks,
                           const std::vector<int32_t>& ages = {}) {
    return gpu_.Step(chunks, ages);
  }
  std::vector<Matrix> Prefill(const std::vector<MixerChunk>& chunks) {
    return gpu_.Prefill(chunks);
  }
  // Whole texts, with masks or none.
  std::vector<Matrix> Encode(const std::vector<Matrix>& texts,
                             const std::vector<Matrix>& masks = {}) const {
    return gpu_.Encode(texts, masks);
  }

  // One sequence, cut into chunks of these lengths, of which the last repeats; 0 is one token by
  // Step.
  Matrix Run(const Matrix& packed, const std::vector<int64_t>& lengths, int32_t slot = 0);

  // N(0, 1), of AFT the keys from the named set (random_inputs.h); rounded to the storage.
  Matrix Input(TestRandom& random, int64_t tokens, const std::string& keys = "n1") const;
  // Tokens [begin, end) of an input, as a chunk.
  MixerChunk Chunk(const Matrix& packed, int64_t begin, int64_t end, int32_t slot = 0) const;

  // The formula in float64.
  std::vector<double> Reference(const Matrix& packed, const Matrix& mask = {}) const {
    return cpu_.Reference(packed, mask);
  }
  // Expects y to be that, or what is given instead, and within the values.
  void ExpectNear(const Matrix& y, const Matrix& packed, const Matrix& mask = {}) const;
  void ExpectNear(const Matrix& y, const Matrix& packed, const std::vector<double>& expected) const;
  // The same of Run, on inputs of its own, and expects the state that it leaves to be the CPU's.
  void ExpectRuns(TestRandom& random, int64_t tokens, const std::vector<int64_t>& lengths,
                  const std::string& keys = "n1");
  // The same of Encode.
  void ExpectEncodes(TestRandom& random, int64_t tokens, const std::string& keys = "n1",
                     const Matrix& mask = {});

  Matrix State(int32_t slot) const { return gpu_.SlotBytes(slot); }
  // Expects the slot to be as the CPU's: sums but for rounding, the rest bit by bit.
  void ExpectStateOfCpu(int32_t slot) const;

 private:
  DeviceLayer(const MixerCase& shape, TestMixer cpu, int32_t slots, Storage storage);

  const MixerCase shape_;
  const Storage storage_;
  TestMixer cpu_;
  GpuTestMixer gpu_;
};

// Shapes: AFT-local (without a window AFT-simple; with rows of biases the last one serves all
// later positions), AFT-conv, also of images, and the attentions, of heads of `width`.
MixerCase Aft(int64_t hid, MixerConfig config, double spread = 1.0);
MixerCase Conv(int64_t hid, int64_t heads, int64_t taps, double spread = 1.0);
MixerCase Image(int64_t hid, int64_t heads, int64_t taps, int64_t width, double spread = 1.0);
MixerCase Attention(MixerKind kind, int64_t heads, int64_t width, int64_t tokens = 160);
MixerCase Blocks(int64_t heads, int64_t width, int64_t block_size, bool global_token = true);
MixerCase BothWays(MixerCase shape);
MixerCase WithBf16Ring(MixerCase shape);
extern const std::vector<MixerKind> kAttentions;

// Rows [begin, end) of a matrix.
Matrix Rows(const Matrix& matrix, int64_t width, int64_t begin, int64_t end);

// Whether the large matrices are asked for: AFT_CUDA_FULL.
bool Full();

}  // namespace aft
