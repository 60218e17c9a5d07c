#ifndef AFT_TESTS_CUDA_LAYER_H_
#define AFT_TESTS_CUDA_LAYER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/kernels/cuda/types.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/device_matrix.h"
#include "tests/property/random_inputs.h"
#include "tests/support/tolerances.h"

namespace aft {

using Matrix = std::vector<float>;  // row-major

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
};

// One mixer's layer: its kernels over a pool of slots on the device, and the CPU's kernel over
// another. Both pools start as NaN, so that a read of what was never written shows. A family says
// how its kernels are called; what tests ask is the same for all.
class DeviceLayer {
 public:
  virtual ~DeviceLayer() = default;
  DeviceLayer(const DeviceLayer&) = delete;
  DeviceLayer& operator=(const DeviceLayer&) = delete;

  virtual std::string Name() const = 0;
  int64_t hid() const { return hid_; }
  int64_t packed_width() const { return packed_width_; }
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
  // Step.
  Matrix Run(const Matrix& packed, const std::vector<int64_t>& lengths, int32_t slot = 0);

  // Tokens whose keys are of the named set (random_inputs.h), rounded to the storage.
  Matrix Input(TestRandom& random, int64_t tokens, const std::string& keys = "n1") const;
  // Tokens [begin, end) of an input, as a chunk.
  LayerChunk Chunk(const Matrix& packed, int64_t begin, int64_t end, int32_t slot = 0) const;

  // Expects y to be what the formula gives in float64, and within the values.
  void ExpectNear(const Matrix& y, const Matrix& packed, const Matrix& mask = {}) const;
  // The same of Run, on inputs of its own, and expects the state that it leaves to be the CPU's.
  void ExpectRuns(TestRandom& random, int64_t tokens, const std::vector<int64_t>& lengths,
                  const std::string& keys = "n1");
  // The same of Encode.
  void ExpectEncodes(TestRandom& random, int64_t tokens, const std::string& keys = "n1",
                     const Matrix& mask = {});

  Matrix State(int32_t slot) const;  // and the padding behind it
  Matrix states() const { return states_.Get(); }
  void set_states(const Matrix& states) { states_.Set(states); }
  Matrix& cpu_states() { return cpu_states_; }
  // Expects the slot to be as the CPU's: sums but for rounding, the rest bit by bit.
  void ExpectStateOfCpu(int32_t slot) const;

  // ---- What a family tells of itself

  // Columns of packed that hold keys and values: a masked token's are not read.
  virtual std::pair<int64_t, int64_t> KeysAndValues() const = 0;
  virtual int64_t ValueColumn() const = 0;  // hid() values from here on
  // What becomes of output c of token t when one number of an earlier or the same token is not
  // finite; `ago` = t - that token, negative for tokens before it.
  enum class Spoilt { kNoBit, kRounding, kAnything };
  virtual Spoilt SpoiltBy(int64_t column, int64_t ago, int64_t c) const = 0;
  // An output of the same token at which a NaN in the column shows.
  virtual int64_t ShownAt(int64_t column) const = 0;
  // A query's, a key's and a value's.
  virtual std::vector<int64_t> Columns(TestRandom& random) const = 0;

 protected:
  DeviceLayer(int64_t hid, int64_t packed_width, int64_t state_floats, int64_t slots,
              Storage storage);

  struct Expected {
    std::vector<double> y;
    Tolerance tolerance;  // of fp32 outputs
  };
  // Inputs as a bf16 ring holds them: keys, with their mask, and values rounded.
  std::vector<double> InBf16Ring(const Matrix& packed, const Matrix& mask) const;
  virtual Expected Reference(const Matrix& packed, const Matrix& mask) const = 0;
  virtual Matrix RawInput(TestRandom& random, int64_t tokens, const std::string& keys) const = 0;
  // Allowed difference of number i of a slot's state from the CPU's.
  virtual double StateTolerance(const float* cpu, int64_t i) const = 0;
  // Whether the token at this position was generated, for operators that care.
  virtual bool Generated(int64_t /*position*/) const { return false; }

  // Floats of the workspace, and the calls.
  virtual int64_t StepFloats(int64_t rows) const = 0;
  virtual int64_t PrefillFloats(int64_t rows, int64_t tokens) const = 0;
  virtual int64_t EncodeFloats(int64_t sequences, int64_t tokens) const = 0;
  virtual int CallStep(const kernels::cuda::StepRows& rows, kernels::cuda::In in,
                       kernels::cuda::State state, kernels::cuda::Out out, float* workspace) = 0;
  virtual int CallPrefill(const kernels::cuda::ChunkRows& chunks, kernels::cuda::In in,
                          kernels::cuda::State state, kernels::cuda::Out out, float* workspace) = 0;
  virtual int CallEncode(const kernels::cuda::Texts& texts, kernels::cuda::In in,
                         kernels::cuda::Out out, float* workspace) = 0;
  virtual void CallCpu(const LayerChunk& chunk, int64_t tokens, float* states, int64_t slot_stride,
                       float* y) = 0;

 private:
  struct Batch;
  std::vector<Matrix> Outputs(const Batch& batch) const;

  const int64_t hid_;
  const int64_t packed_width_;
  const int64_t state_floats_;
  const int64_t slot_stride_;
  const Storage storage_;
  DeviceArray<float> states_;
  Matrix cpu_states_;
};

// Rows [begin, end) of a matrix.
Matrix Rows(const Matrix& matrix, int64_t width, int64_t begin, int64_t end);

// Whether the large matrices are asked for: AFT_CUDA_FULL.
bool Full();

}  // namespace aft

#endif  // AFT_TESTS_CUDA_LAYER_H_
