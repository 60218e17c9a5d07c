#ifndef AFT_TESTS_PROPERTY_AFT_HARNESS_H_
#define AFT_TESTS_PROPERTY_AFT_HARNESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/kernels/aft.h"
#include "tests/support/same_bits.h"

namespace aft {

// One causal AFT layer.
struct AftLayer {
  int64_t hid = 0;
  int64_t window = 0;
  int64_t prefix_block = 0;
  int64_t band_rows = 1;
  std::vector<float> band;  // [band_rows, window], column = t - t'
  kernels::AftRing ring = kernels::AftRing::kFp32;

  kernels::AftBias bias() const;
  int64_t slot_floats() const;
};

// y [T, hid] of one sequence from the equations in float64: O(T^2), exact maximum per row, the
// block rule written as a condition. qkv [T, 3 * hid].
std::vector<double> AftReference(const AftLayer& layer, const std::vector<float>& qkv);

// A part of one sequence as it enters a batch.
struct Chunk {
  int32_t slot = 0;
  int64_t position = 0;
  std::vector<float> qkv;  // [length, 3 * hid]
};

// The kernel over a pool of slots whose memory starts as NaN, so that any read of what was never
// written shows.
class AftRunner {
 public:
  AftRunner(const AftLayer& layer, int64_t slots);

  // Runs one batch, its units in random ranges and order; returns y per chunk.
  std::vector<std::vector<float>> Run(const std::vector<Chunk>& chunks);

  // One sequence in slot 0, cut into chunks of these lengths (the last length repeats).
  std::vector<float> RunCut(const std::vector<float>& qkv, const std::vector<int64_t>& lengths);

  std::vector<float>& states() { return states_; }

 private:
  const AftLayer& layer_;
  const kernels::AftBias bias_;
  const kernels::AftParams params_;
  std::vector<float> states_;
  uint64_t shuffle_ = 88172645463325252ULL;
};

// [begin, end) of the tokens of a [T, width] matrix.
std::vector<float> Tokens(const std::vector<float>& matrix, int64_t width, int64_t begin,
                          int64_t end);

// Instruction sets that this binary holds and this CPU runs, as Highway's bits.
std::vector<int64_t> InstructionSets();
std::string InstructionSetName(const testing::TestParamInfo<int64_t>& info);

// Every test of a derived class runs once per instruction set.
class EveryInstructionSet : public testing::TestWithParam<int64_t> {
 protected:
  EveryInstructionSet();
  ~EveryInstructionSet() override;
};

}  // namespace aft

#endif  // AFT_TESTS_PROPERTY_AFT_HARNESS_H_
