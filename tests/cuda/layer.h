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

inline constexpr Storage kBf16Storage = {Number::kBf16};
// Every type of outputs.
extern const std::vector<Storage> kStorages;

// One mixer with the same tables on the GPU and on the CPU, and its formula to compare both with.
class DeviceLayer {
 public:
  // The tables are random or given.
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

  // Runs one batch on the GPU and returns y of each chunk. In a Step every chunk has one token, and
  // with `ages` the kernel uses look-ahead sums.
  std::vector<Matrix> Step(const std::vector<MixerChunk>& chunks,
                           const std::vector<int32_t>& ages = {}) {
    return gpu_.Step(chunks, ages);
  }
  std::vector<Matrix> Prefill(const std::vector<MixerChunk>& chunks) {
    return gpu_.Prefill(chunks);
  }
  // Computes whole texts, which may have masks.
  std::vector<Matrix> Encode(const std::vector<Matrix>& texts,
                             const std::vector<Matrix>& masks = {}) const {
    return gpu_.Encode(texts, masks);
  }

  // Runs one sequence in chunks of these lengths. The last length repeats until the text ends, and
  // a length of 0 is one token by Step.
  Matrix Run(const Matrix& packed, const std::vector<int64_t>& lengths, int32_t slot = 0);

  // Draws N(0, 1), and the keys of AFT from the named set (random_inputs.h).
  Matrix Input(TestRandom& random, int64_t tokens, const std::string& keys = "n1") const;
  // Returns tokens [begin, end) of an input as a chunk.
  MixerChunk Chunk(const Matrix& packed, int64_t begin, int64_t end, int32_t slot = 0) const;

  // Returns the results of the formula in float64.
  std::vector<double> Reference(const Matrix& packed, const Matrix& mask = {}) const {
    return cpu_.Reference(packed, mask);
  }
  // Expects y to be near Reference or `expected`, and no mean of values to exceed the largest one.
  void ExpectNear(const Matrix& y, const Matrix& packed, const Matrix& mask = {}) const;
  void ExpectNear(const Matrix& y, const Matrix& packed, const std::vector<double>& expected) const;
  // Draws an input and expects Run to give the formula's results and the CPU's state.
  void ExpectRuns(TestRandom& random, int64_t tokens, const std::vector<int64_t>& lengths,
                  const std::string& keys = "n1");
  // Draws an input and expects Encode to give the formula's results.
  void ExpectEncodes(TestRandom& random, int64_t tokens, const std::string& keys = "n1",
                     const Matrix& mask = {});

  Matrix State(int32_t slot) const { return gpu_.SlotContents(slot); }
  // Expects the slot to equal the CPU's. Sums and the normalised keys of cosine attention may
  // differ by rounding, all else has the same bits.
  void ExpectStateOfCpu(int32_t slot) const;

 private:
  DeviceLayer(const MixerCase& shape, TestMixer cpu, int32_t slots, Storage storage);

  const MixerCase shape_;
  const Storage storage_;
  TestMixer cpu_;
  GpuTestMixer gpu_;
};

// Shapes of mixers. Aft is AFT-local, and AFT-simple without a window. With rows of biases the last
// row serves all later positions. Conv is AFT-conv on texts, Image on images of `width` columns.
// The heads of Attention, Blocks and Wkv7 have `width` columns.
MixerCase Aft(int64_t hid, MixerConfig config, double spread = 1.0);
MixerCase Conv(int64_t hid, int64_t heads, int64_t taps, double spread = 1.0);
MixerCase Image(int64_t hid, int64_t heads, int64_t taps, int64_t width, double spread = 1.0);
MixerCase Attention(MixerKind kind, int64_t heads, int64_t width, int64_t tokens = 160);
MixerCase Blocks(int64_t heads, int64_t width, int64_t block_size, bool global_token = true);
MixerCase Wkv4(int64_t hid);
MixerCase Wkv7(int64_t heads, int64_t width);
MixerCase BothWays(MixerCase shape);
MixerCase WithBf16Ring(MixerCase shape);
extern const std::vector<MixerKind> kAttentions;

// Returns rows [begin, end) of a matrix.
Matrix Rows(const Matrix& matrix, int64_t width, int64_t begin, int64_t end);

// Returns whether AFT_CUDA_FULL is set: then tests run every combination of shapes.
bool Full();

}  // namespace aft
