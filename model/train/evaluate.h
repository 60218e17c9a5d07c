#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/train/corpus.h"
#include "model/train/train_network.h"

namespace aft {

// Bits per byte of held-out text; lower is better. Both figures divide by the number of bytes that
// the scored tokens stand for, so that models with different tokenizers can be compared. The token
// of an unknown character stands for 0 bytes; a text of such tokens alone counts as one byte.
struct HeldOut {
  double fresh = 0;  // segments that start from an empty state: positions 0 .. segment
  // One long state per text, from the start of its held-out part on, in whole segments. With an
  // empty NetworkCarry these are consecutive segments that start from an empty state.
  double carried = 0;
};
// Measures about `tokens` tokens for each figure, at least one segment, taken from the texts in
// proportion to their held-out parts, so that a small text may have no share. When `tokens` is
// corpus.held_out_tokens() or more it measures everything except less than a segment per text.
// REQUIRES: CheckSegment is OK; tokens >= 1; the network's vocabulary has all tokens of the corpus;
// each text's held-out part has more than `segment` tokens, as MakeCorpus(..., segment + 1)
// ensures.
HeldOut EvaluateHeldOut(const TrainNetwork& network, const Corpus& corpus, int64_t segment,
                        int64_t tokens, bool bf16);

// Bits per byte of held-out text after the model has read `position` tokens before it. The scored
// text is the same for every position, so a difference between positions comes from the model.
// Windows of 1,024 tokens are scored at positions [position, position + 1,024), for position 256 in
// four pieces of 256.
// INVALID_ARGUMENT: prefix_block does not divide 256; a text (the message names it) has fewer than
// `position` tokens before a window; or no text holds out a whole window. REQUIRES: the network
// carries its state (EmptyNetworkCarry is not empty) and its vocabulary has all tokens of the
// corpus; position is 256 or a multiple of 1,024; windows is in [1, 2^20].
absl::StatusOr<double> EvaluateAtPosition(const TrainNetwork& network, const Corpus& corpus,
                                          int64_t position, int64_t windows, bool bf16);

}  // namespace aft
