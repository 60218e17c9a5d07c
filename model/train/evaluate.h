#pragma once

#include <cstdint>

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
// but for less than a segment a text, when `bytes` is corpus.held_out_bytes().
HeldOut EvaluateHeldOut(const TrainNetwork& network, const Corpus& corpus, int64_t segment,
                        int64_t bytes, bool bf16);

// Bits per byte of the same held-out bytes when the text began `position` bytes before them: what
// changes between positions is the model's, not the text's. Windows of 1,024 bytes are scored at
// positions [position, position + 1,024), for position 256 in four pieces of 256.
// REQUIRES: the network carries its state (EmptyNetworkCarry is not empty); position is 256 or a
// multiple of 1,024; prefix_block divides 256; texts have more than position bytes before their
// held-out part.
double EvaluateAtPosition(const TrainNetwork& network, const Corpus& corpus, int64_t position,
                          int64_t windows, bool bf16);

}  // namespace aft
