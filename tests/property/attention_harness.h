#ifndef AFT_TESTS_PROPERTY_ATTENTION_HARNESS_H_
#define AFT_TESTS_PROPERTY_ATTENTION_HARNESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/kernels/attention.h"
#include "tests/property/random_inputs.h"

namespace aft {

enum class AttentionKind { kDot, kCosine, kAdditive, kLocation, kBlockLocal };
extern const std::vector<AttentionKind> kAttentionKinds;

// One attention layer: kernel parameters that own their tables.
class AttentionLayer {
 public:
  // Width of values `width` per head; of scores the same, but additive: 5. Location: one head.
  // Tables are N(0, 1). capacity: of slots, and rows of the location table.
  AttentionLayer(AttentionKind kind, int64_t heads, int64_t width, int64_t capacity,
                 TestRandom& random);

  AttentionKind kind;
  kernels::AttentionParams params;     // change what the constructor does not fix
  std::vector<float> score_weight;     // additive
  std::vector<float> position_weight;  // location [capacity, width]

  int64_t packed_width() const {
    return params.StrengthColumn() + (params.score == kernels::Score::kCosine ? params.heads : 0);
  }
  int64_t slot_floats() const { return kernels::AttentionStateLayout(params).Floats(); }
  std::string Name() const;

 private:
  std::vector<float> packed_keys_;
};

// Whether t sees t2 in a sequence of `tokens`, of which those from `generated` on were generated:
// the rules of the operators written down once more.
bool Sees(const kernels::AttentionParams& params, int64_t tokens, int64_t generated, int64_t t,
          int64_t t2);

// y [T, hid] of one sequence in float64: O(T^2), exact maximum per row. mask as in SequenceBatch,
// or empty. *largest is the largest sum of absolute terms of a score: what its rounding goes by.
std::vector<double> AttentionReference(const AttentionLayer& layer,
                                       const std::vector<float>& packed,
                                       const std::vector<float>& mask, int64_t generated,
                                       double* largest);

}  // namespace aft

#endif  // AFT_TESTS_PROPERTY_ATTENTION_HARNESS_H_
