#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/api/encoder_runner.h"

namespace aft {

// The rules that encoder_runner.h sets for the sequences of one call, the same for every device.
struct TextLimits {
  int64_t max_batch_rows = 0;
  int64_t max_batch_tokens = 0;
  int64_t vocab_size = 0;       // 0: the model takes no ids
  int64_t max_seq_len = 0;      // 0: unlimited
  int64_t width = 0;            // of input vectors
  int64_t max_image_width = 0;  // 0: the model takes no images; otherwise it takes only images
  EncoderForms forms{};

  // The longest sequence that a call can hold.
  int64_t longest() const {
    return max_seq_len > 0 && max_seq_len < max_batch_tokens ? max_seq_len : max_batch_tokens;
  }
};

// INVALID_ARGUMENT names the first sequence that breaks a rule, and the rule.
absl::Status CheckTexts(const TextLimits& limits, const std::vector<EncoderInput>& sequences);

// A call of `tokens` tokens that the model takes, all zeros, in sequences that are as long as
// possible.
std::vector<EncoderInput> ZeroInputs(const TextLimits& limits, int64_t tokens);

// Sequences that go through a network together because they have the same form. The first five
// members are the form: vectors instead of ids, the width of images, a mask of pairs, keys and
// values of their own, and a number of keys that differs from that of the queries.
struct EncoderPass {
  bool vectors = false;
  int64_t image_width = 0;
  bool pairs = false;
  bool sources = false;
  bool own_keys = false;
  std::vector<size_t> sequences{};  // indexes in the call, ascending
};
// Groups the sequences of a call by their form.
std::vector<EncoderPass> PassesOf(const std::vector<EncoderInput>& sequences, int64_t width);

}  // namespace aft
