#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/kernels/cuda/types.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/device_matrix.h"
#include "tests/cuda/kernel_family.h"
#include "tests/property/random_inputs.h"
#include "tests/support/tolerances.h"

namespace aft {

// Of inputs and outputs, and whether there are gaps between the rows of matrices.
struct Storage {
  Number in = Number::kFp32;
  Number out = Number::kFp32;
  bool padded = false;

  std::string Name() const;
};
inline constexpr Storage kBf16Storage = {Number::kBf16, Number::kBf16};
// Every pair that all families have kernels for.
extern const std::vector<Storage> kStorages;

// Consecutive tokens of one sequence.
struct LayerChunk {
  int32_t slot = 0;  // negative: padding
  int64_t position = 0;
  Matrix packed;     // [tokens, packed_width()]
  int32_t age = -1;  // of a step with look-ahead
  bool generated = false;
};

// One mixer's layer: its kernels over a pool of slots on the device, and the CPU's kernel over
// another. Both pools start as NaN, so that a read of what was never written shows.
class DeviceLayer {
 public:
  // With random tables, or given ones.
  DeviceLayer(TestRandom& random, const LayerShape& shape, int64_t slots = 1, Storage storage = {});
  DeviceLayer(const LayerShape& shape, const ReferenceTables& tables, int64_t slots = 1,
              Storage storage = {});

  std::string Name() const;
  int64_t hid() const { return shape_.hid; }
  int64_t packed_width() const { return packed_width_; }
  // Columns of packed: keys from hid() or more on, then values, then what cosine has of its own.
  int64_t key_column() const { return key_column_; }
  int64_t value_column() const { return value_column_; }
  const Storage& storage() const { return storage_; }

  // One batch: y of each chunk. Step: chunks of one token.
  std::vector<Matrix> Step(const std::vector<LayerChunk>& chunks);
  std::vector<Matrix> Prefill(const std::vector<LayerChunk>& chunks);
  // By the CPU's kernel, on its states. REQUIRES: fp32 or rounded inputs.
  std::vector<Matrix> OnCpu(const std::vector<LayerChunk>& chunks);
  // Whole texts, with masks or none.
  std::vector<Matrix> Encode(const std::vector<Matrix>& texts,
                             const std::vector<Matrix>& masks = {});

  // One sequence, cut into chunks of these lengths, of which the last repeats; 0 is one token by
  // Step. The tokens from `generated` on were generated.
  Matrix Run(const Matrix& packed, const std::vector<int64_t>& lengths, int32_t slot = 0,
             int64_t generated = INT64_MAX);

  // N(0, 1), of AFT the keys from the named set (random_inputs.h); rounded to the storage.
  Matrix Input(TestRandom& random, int64_t tokens, const std::string& keys = "n1") const;
  // Tokens [begin, end) of an input, as a chunk.
  LayerChunk Chunk(const Matrix& packed, int64_t begin, int64_t end, int32_t slot = 0) const;

  // The formula in float64.
  std::vector<double> Reference(const Matrix& packed, const Matrix& mask = {}) const;
  // Expects y to be that, or what is given instead, and within the values.
  void ExpectNear(const Matrix& y, const Matrix& packed, const Matrix& mask = {}) const;
  void ExpectNear(const Matrix& y, const Matrix& packed, const std::vector<double>& expected) const;
  // The same of Run, on inputs of its own, and expects the state that it leaves to be the CPU's.
  void ExpectRuns(TestRandom& random, int64_t tokens, const std::vector<int64_t>& lengths,
                  const std::string& keys = "n1");
  // The same of Encode.
  void ExpectEncodes(TestRandom& random, int64_t tokens, const std::string& keys = "n1",
                     const Matrix& mask = {});

  Matrix State(int32_t slot) const;  // and the padding behind it
  Matrix Sums(int32_t slot) const { return calls_->Sums(slot); }
  Matrix states() const { return states_.Get(); }
  void set_states(const Matrix& states) { states_.Set(states); }
  Matrix& cpu_states() { return cpu_states_; }
  // Expects the slot to be as the CPU's: sums but for rounding, the rest bit by bit.
  void ExpectStateOfCpu(int32_t slot) const;

 private:
  struct Batch;
  std::vector<Matrix> Outputs(const Batch& batch) const;

  const LayerShape shape_;
  const ReferenceTables tables_;
  const std::unique_ptr<KernelFamilyCalls> calls_;
  const int64_t packed_width_;
  int64_t key_column_ = 0;
  int64_t value_column_ = 0;
  const int64_t slot_stride_;
  const Storage storage_;
  DeviceArray<float> states_;
  Matrix cpu_states_;
};

// Shapes: AFT-local (without a window AFT-simple; with rows of biases the last one serves all
// later positions), AFT-conv, also of images, and the attentions, of heads of `width`.
LayerShape Aft(int64_t hid, MixerConfig config, double spread = 1.0);
LayerShape Conv(int64_t hid, int64_t heads, int64_t taps, double spread = 1.0);
LayerShape Image(int64_t hid, int64_t heads, int64_t taps, int64_t width, double spread = 1.0);
LayerShape Attention(MixerKind kind, int64_t heads, int64_t width, int64_t capacity = 160);
LayerShape Blocks(int64_t heads, int64_t width, int64_t block_size, bool global_token = true);
LayerShape BothWays(LayerShape shape);
LayerShape WithBf16Ring(LayerShape shape);
extern const std::vector<MixerKind> kAttentions;

// Rows [begin, end) of a matrix.
Matrix Rows(const Matrix& matrix, int64_t width, int64_t begin, int64_t end);

// Whether the large matrices are asked for: AFT_CUDA_FULL.
bool Full();

}  // namespace aft
