#ifndef AFT_TESTS_CUDA_AFT_PREFILL_HARNESS_H_
#define AFT_TESTS_CUDA_AFT_PREFILL_HARNESS_H_

#include <cstdint>
#include <vector>

#include "tests/cuda/aft_layer.h"
#include "tests/property/random_inputs.h"
#include "tests/support/same_bits.h"

namespace aft::aft_prefill_test {

using aft_layer::kBf16;
using aft_layer::Layer;
using aft_layer::Storage;

// Consecutive tokens of one sequence.
struct Chunk {
  int32_t slot = 0;
  int64_t position = 0;
  std::vector<float> qkv;  // [tokens, 3 * hid]
};

// A layer whose tokens come in chunks, or as whole texts.
class Runner : public aft_layer::LayerStates {
 public:
  explicit Runner(TestRandom& random, const Layer& layer, int64_t slots = 1, Storage storage = {})
      : LayerStates(random, layer, slots, storage) {}
  // The same layer with its biases, and fresh states.
  Runner Copy() const { return {layer_, slots_, storage_, table_}; }

  // One batch by AftPrefill: y of each chunk.
  std::vector<std::vector<float>> Prefill(const std::vector<Chunk>& chunks);
  // One sequence in slot 0, cut into chunks of these lengths, of which the last repeats.
  std::vector<float> PrefillCut(const std::vector<float>& qkv, const std::vector<int64_t>& lengths);
  // One batch by the CPU's kernel on its own states.
  std::vector<std::vector<float>> OnCpu(const std::vector<Chunk>& chunks);
  // Whole texts by AftEncode, with masks or none.
  std::vector<std::vector<float>> Encode(const std::vector<std::vector<float>>& texts,
                                         const std::vector<std::vector<float>>& masks = {}) const;

  // Expects y to be finite, within the values, and as near to float64 as aft-operators.md 7 asks.
  void ExpectNear(const std::vector<float>& y, const std::vector<float>& qkv,
                  const std::vector<float>& mask = {}) const;

  void CopyStatesToCpu() { cpu_states_ = states_.Get(); }
  void CopyStatesFromCpu() { states_.Set(cpu_states_); }

 private:
  using LayerStates::LayerStates;
};

// Tokens [begin, end) of a [T, width] matrix.
std::vector<float> Part(const std::vector<float>& matrix, int64_t width, int64_t begin,
                        int64_t end);
// The large matrix, by hand.
bool Full();

}  // namespace aft::aft_prefill_test

#endif  // AFT_TESTS_CUDA_AFT_PREFILL_HARNESS_H_
