#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/train/corpus.h"
#include "model/train/train_network.h"

namespace aft {

// Bits per byte on held-out text. Both are averages over the same kind of byte; lower is better.
struct HeldOut {
  double fresh = 0;  // segments that start from an empty state: positions 0 .. segment
  // One long state per text, from the start of its held-out part on, in whole segments; with an
  // empty NetworkCarry consecutive segments that start afresh.
  double carried = 0;
};
// About `bytes` bytes of each kind, of every text in proportion to its held-out part: all of it,
// but for less than a segment a text, when `bytes` is corpus.held_out_bytes() or more.
// REQUIRES: CheckSegment is OK; bytes >= 1; the network's vocabulary has all bytes; each text's
// held-out part has more than `segment` bytes, as ReadCorpus(..., segment + 1) sees to.
HeldOut EvaluateHeldOut(const TrainNetwork& network, const Corpus& corpus, int64_t segment,
                        int64_t bytes, bool bf16);

// Bits per byte of the same held-out bytes when the text began `position` bytes before them: what
// changes between positions is the model's, not the text's. Windows of 1,024 bytes are scored at
// positions [position, position + 1,024), for position 256 in four pieces of 256.
// INVALID_ARGUMENT: prefix_block does not divide 256; a text has fewer than `position` bytes before
// a window, and is named; or no text holds out a whole window.
// REQUIRES: the network carries its state (EmptyNetworkCarry is not empty) and its vocabulary has
// all bytes; position is 256 or a multiple of 1,024; windows is in [1, 2^20].
absl::StatusOr<double> EvaluateAtPosition(const TrainNetwork& network, const Corpus& corpus,
                                          int64_t position, int64_t windows, bool bf16);

}  // namespace aft
