#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/train/corpus.h"
#include "model/train/train_network.h"

namespace aft {

// Bits per byte of held-out text; lower is better. Both divide by the bytes that the scored tokens
// stand for, so that figures of models with different tokenizers compare. An unknown character's
// token stands for none.
struct HeldOut {
  double fresh = 0;  // segments that start from an empty state: positions 0 .. segment
  // One long state per text, from the start of its held-out part on, in whole segments; with an
  // empty NetworkCarry consecutive segments that start afresh.
  double carried = 0;
};
// About `tokens` tokens of each kind, of every text in proportion to its held-out part: all of it,
// but for less than a segment a text, when `tokens` is corpus.held_out_tokens() or more.
// REQUIRES: CheckSegment is OK; tokens >= 1; the network's vocabulary has all of the corpus; each
// text's held-out part has more than `segment` tokens, as MakeCorpus(..., segment + 1) sees to.
HeldOut EvaluateHeldOut(const TrainNetwork& network, const Corpus& corpus, int64_t segment,
                        int64_t tokens, bool bf16);

// Bits per byte of the same held-out text when it began `position` tokens before: what changes
// between positions is the model's, not the text's. Windows of 1,024 tokens are scored at
// positions [position, position + 1,024), for position 256 in four pieces of 256.
// INVALID_ARGUMENT: prefix_block does not divide 256; a text has fewer than `position` tokens
// before a window, and is named; or no text holds out a whole window. REQUIRES: the network carries
// its state (EmptyNetworkCarry is not empty) and its vocabulary has all of the corpus; position is
// 256 or a multiple of 1,024; windows is in [1, 2^20].
absl::StatusOr<double> EvaluateAtPosition(const TrainNetwork& network, const Corpus& corpus,
                                          int64_t position, int64_t windows, bool bf16);

}  // namespace aft
