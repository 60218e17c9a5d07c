#ifndef AFT_TESTS_PARITY_MIXER_RUN_H_
#define AFT_TESTS_PARITY_MIXER_RUN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "model/mixers/mixer.h"

namespace aft {

// A mixer on one thread, tensors in and tensors out. Ends the test when the mixer cannot be made.
class MixerRun {
 public:
  // Sequences of at most `max_tokens`.
  MixerRun(const MixerConfig& config, int64_t hid, const MixerTables& tables, int64_t max_tokens);

  // One sequence, packed [T, W] -> [T, hid], cut into rows of `chunk` tokens. Tokens from
  // `first_generated` on are marked as generated.
  at::Tensor Forward(const at::Tensor& packed, int64_t chunk, int64_t first_generated) const;
  at::Tensor Forward(const at::Tensor& packed, int64_t chunk) const {
    return Forward(packed, chunk, packed.size(0));
  }

  // Whole sequences of these lengths one after the other, packed [N, W] -> [N, hid]. `mask` [N] or
  // undefined.
  at::Tensor Encode(const at::Tensor& packed, const std::vector<int64_t>& lengths,
                    const at::Tensor& mask = {}, int64_t grid_width = 0) const;
  at::Tensor Encode(const at::Tensor& packed) const { return Encode(packed, {packed.size(0)}); }

 private:
  int64_t hid_;
  int64_t width_;
  std::unique_ptr<Mixer> mixer_;
};

}  // namespace aft

#endif  // AFT_TESTS_PARITY_MIXER_RUN_H_
